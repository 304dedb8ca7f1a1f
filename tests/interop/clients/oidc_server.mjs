// An MCP server whose logins are those of oidc-provider, a certified authorization server: node oidc_server.mjs PORT
// It rotates refresh tokens and ends a login whose old refresh token is used again.
// `--dpop`: the MCP server accepts only tokens that are bound to a key.
// `--jwt URL`: a resource of somebody else, for which access tokens are JWTs.
import http from 'node:http'
import Provider from 'oidc-provider'

const port = Number(process.argv[2])
const dpop = process.argv.includes('--dpop')
const issuer = `http://localhost:${port}`
const resource = `${issuer}/mcp`
const others = process.argv.filter((_, index) => process.argv[index - 1] === '--jwt')
const stats = { refreshed: 0, failed: 0, calls: 0, refused: 0 }
const valid = new Set()

const provider = new Provider(issuer, {
  features: {
    devInteractions: { enabled: true },
    registration: { enabled: true },
    deviceFlow: { enabled: true },
    revocation: { enabled: true },
    dPoP: { enabled: true, allowReplay: false },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => undefined,
      useGrantedResource: () => true,
      getResourceServerInfo: (_, indicator) => {
        if (others.includes(indicator)) {
          return { scope: 'mcp', audience: indicator, accessTokenFormat: 'jwt', accessTokenTTL: 3600 }
        }
        if (indicator !== resource) throw new Error(`unknown resource ${indicator}`)
        return { scope: 'mcp', audience: resource, accessTokenFormat: 'opaque', accessTokenTTL: 3600 }
      },
    },
  },
  scopes: ['openid', 'offline_access', 'mcp'],
  pkce: { required: () => true },
  rotateRefreshToken: true,
  issueRefreshToken: async (_, client) => client.grantTypeAllowed('refresh_token'),
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  cookies: { keys: ['a key of a test'] },
})
provider.on('grant.success', (context) => {
  valid.add(context.body.access_token)
  if (context.oidc.params.grant_type === 'refresh_token') stats.refreshed += 1
})
provider.on('grant.error', (context) => {
  if (context.oidc.params?.grant_type === 'refresh_token') stats.failed += 1
})

const handle = provider.callback()

function reply(response, status, body, headers = {}) {
  response.writeHead(status, { 'content-type': 'application/json', ...headers })
  response.end(body === undefined ? '' : JSON.stringify(body))
}

async function serveMcp(request, response) {
  const [scheme, token] = (request.headers.authorization ?? '').split(' ')
  const found = token && valid.has(token) && (await provider.AccessToken.find(token))
  const bound = dpop ? scheme === 'DPoP' && request.headers.dpop && found?.jkt : scheme === 'Bearer'
  if (!found || !bound || found.aud !== resource) {
    stats.refused += 1
    const metadata = `${issuer}/.well-known/oauth-protected-resource/mcp`
    const challenge = `${dpop ? 'DPoP' : 'Bearer'} resource_metadata="${metadata}", scope="mcp"`
    return reply(response, 401, undefined, { 'www-authenticate': challenge })
  }
  if (request.method !== 'POST') return reply(response, 405)
  let text = ''
  for await (const part of request) text += part
  const { id, method } = JSON.parse(text)
  if (id === undefined) return reply(response, 202)
  const results = {
    initialize: { protocolVersion: '2025-11-25', capabilities: { tools: {} }, serverInfo: { name: 'oidc', version: '1' } },
    ping: {},
    'tools/list': { tools: [{ name: 'echo', inputSchema: { type: 'object' } }] },
    'tools/call': { content: [{ type: 'text', text: found.accountId }] },
  }
  if (method === 'tools/call') stats.calls += 1
  const result = results[method]
  const body = result ? { result } : { error: { code: -32601, message: 'no such method' } }
  return reply(response, 200, { jsonrpc: '2.0', id, ...body })
}

http
  .createServer((request, response) => {
    const path = request.url.split('?')[0]
    if (path === '/mcp') return serveMcp(request, response)
    if (path === '/.well-known/oauth-protected-resource/mcp') {
      return reply(response, 200, { resource, authorization_servers: [issuer], scopes_supported: ['mcp'] })
    }
    if (path === '/test/stats') return reply(response, 200, stats)
    if (path === '/test/expire') {
      valid.clear()
      return reply(response, 200, {})
    }
    return handle(request, response)
  })
  .listen(port, 'localhost', () => console.log('ready'))

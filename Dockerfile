# mcpd in a container: docker build -t mcpd . && docker run --rm -p 127.0.0.1:8931:8931 -v mcpd-data:/data \
#   -v ./config.yaml:/etc/mcpd/config.yaml:ro --read-only --tmpfs /tmp --tmpfs /run/mcpd:mode=0700,uid=10001 mcpd
# The image contains Node.js and uv, so that servers can be started with npx and uvx.
ARG BASE=docker.io/library/python:3.13-slim-trixie

FROM ${BASE} AS build
COPY . /src
RUN python3 -m venv /opt/mcpd && /opt/mcpd/bin/pip install --no-cache-dir "/src[keys,otel,redis]" uv

FROM ${BASE}
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates git nodejs npm \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --create-home --home-dir /data mcpd \
 && install --directory --owner=mcpd --group=mcpd --mode=0700 /data/.local /data/.local/state /data/.local/state/mcpd
COPY --from=build /opt/mcpd /opt/mcpd
ENV PATH=/opt/mcpd/bin:$PATH HOME=/data XDG_RUNTIME_DIR=/run/mcpd
USER 10001
VOLUME /data
EXPOSE 8931
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s CMD ["mcpctl", "--no-start", "daemon", "status"]
ENTRYPOINT ["mcpd"]
CMD ["--config", "/etc/mcpd/config.yaml", "--http", "0.0.0.0:8931"]

#!/usr/bin/env bash
# A real `systemd --user` manager for the length of one command, also where PID 1 is not systemd.
#
#   user-manager.sh HOME_DIR COMMAND [ARG...]
#
# The command runs with HOME=HOME_DIR (its units in HOME_DIR/.config/systemd/user), a working `systemctl
# --user`, and /run, /proc, process ids and System V IPC of its own: what it starts cannot outlive it, and
# its service cannot meet a service of the machine. Exit status: the command's, or 77 with the reason on
# stderr where this machine cannot do it.
set -u

refuse() { echo "user-manager: $*" >&2; exit 77; }

if [[ ${1:-} != --inside ]]; then
  [[ $# -ge 2 ]] || { echo "usage: user-manager.sh HOME_DIR COMMAND [ARG...]" >&2; exit 2; }
  [[ $(id -u) == 0 ]] || refuse "needs root, to make namespaces"
  [[ -x /lib/systemd/systemd ]] || refuse "needs systemd"
  for tool in dbus-daemon unshare mount systemctl; do
    command -v "$tool" >/dev/null || refuse "needs $tool"
  done
  group=mcpd-test-$$
  unshare --mount --pid --fork --ipc --kill-child -- "$BASH" "$0" --inside "$group" "$@"
  status=$?
  for tree in systemd unified .; do # the manager made groups below ours; they are empty now
    [[ -d /sys/fs/cgroup/$tree/$group ]] &&
      find "/sys/fs/cgroup/$tree/$group" -depth -type d -exec rmdir {} + 2>/dev/null
  done
  exit "$status"
fi

group=$2 home=$(realpath "$3")
shift 3
for tree in systemd unified .; do # whichever the machine has: cgroup v1, hybrid or v2
  [[ -e /sys/fs/cgroup/$tree/cgroup.procs ]] || continue
  mkdir -p "/sys/fs/cgroup/$tree/$group" 2>/dev/null &&
    echo $$ >"/sys/fs/cgroup/$tree/$group/cgroup.procs" 2>/dev/null
done
{ mount --make-rprivate / && mount -t proc proc /proc && mount -t tmpfs tmpfs /run; } || refuse "cannot mount"
export XDG_RUNTIME_DIR=/run/user/$(id -u)
mkdir -p /run/systemd/system "$XDG_RUNTIME_DIR" && chmod 700 "$XDG_RUNTIME_DIR"
unset XDG_CONFIG_HOME XDG_STATE_HOME XDG_CACHE_HOME XDG_DATA_HOME MCPD_SOCKET
export HOME=$home DBUS_SESSION_BUS_ADDRESS=unix:path=$XDG_RUNTIME_DIR/bus
dbus-daemon --session --address="$DBUS_SESSION_BUS_ADDRESS" --fork --nopidfile || refuse "no message bus"
# A bare search path, as a login without a shell gives it.
PATH=/usr/local/bin:/usr/bin:/bin /lib/systemd/systemd --user --log-target=console \
  >"$XDG_RUNTIME_DIR/manager.log" 2>&1 &
up() { systemctl --user is-system-running 2>/dev/null | grep -qE '^(running|degraded)$'; }
for _ in $(seq 900); do
  up && break
  sleep 0.1
done
up || { cat "$XDG_RUNTIME_DIR/manager.log" >&2; refuse "the manager did not come up"; }
"$@"
exit # with its status; whatever is left ends with us, the first process of this namespace

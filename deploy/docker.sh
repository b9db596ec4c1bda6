#!/usr/bin/env bash
# deploy/docker.sh start|stop FOLDER: a Docker engine for the tests.
# If an engine answers, `start` does nothing, since a second engine would remove its network. Otherwise it
# starts one as root, and on Debian installs it first. FOLDER holds the log and the process id of an engine
# that was started here; `stop` ends only that engine.
set -euo pipefail

answers() { docker info >/dev/null 2>&1; }

fail() { printf 'docker: %s\n' "$*" >&2; exit 1; }

install_engine() {
  command -v apt-get >/dev/null || fail "no Docker engine is installed; install one, then run this again"
  echo "docker: installing the engine"
  local packages=(docker.io iptables)
  apt-get update -qq
  # Newer Debian releases have the `docker` command in a separate package.
  apt-cache show docker-cli >/dev/null 2>&1 && packages+=(docker-cli)
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${packages[@]}" >/dev/null ||
    fail "the engine could not be installed, see the error above"
}

start() {
  answers && return
  [ "$(id -u)" = 0 ] || fail "no engine answers; run: sudo systemctl start docker, or be root"
  command -v dockerd >/dev/null && command -v docker >/dev/null || install_engine
  answers && return # the package may have started it
  mkdir -p "$1"
  # A new session, so that on Ctrl-C the tests can still stop their containers.
  setsid dockerd >"$1/log" 2>&1 </dev/null &
  local pid=$! deadline=$((SECONDS + 60))
  echo "$pid" >"$1/pid"
  until answers; do
    if ! kill -0 "$pid" 2>/dev/null || ((SECONDS > deadline)); then
      tail -n 20 "$1/log" >&2
      stop "$1"
      fail "the engine did not start; its last lines are above"
    fi
    sleep 0.5
  done
}

stop() {
  [ -f "$1/pid" ] || return 0
  local pid deadline=$((SECONDS + 30))
  pid=$(cat "$1/pid")
  kill "$pid" 2>/dev/null || true
  while kill -0 "$pid" 2>/dev/null && ((SECONDS < deadline)); do sleep 0.2; done
  rm -rf "$1"
}

case "${1:-} ${2:-}" in
  "start "?* | "stop "?*) "$1" "$2" ;;
  *) fail "usage: deploy/docker.sh start|stop FOLDER" ;;
esac

#!/usr/bin/env bash
# start.sh: starts nginx with nginx.conf of this folder, in the foreground and with files in a folder of its own.
#   PROXY_LISTEN    address and port for browsers; 0.0.0.0:8080
#   PROXY_NAMES     the names in the browser's address line, without port; "localhost 127.0.0.1"
#   PROXY_UPSTREAM  the webserver; 127.0.0.1:3000
#   PROXY_REPORTS   address and port for reports of live queries; 127.0.0.1:8081
#   PROXY_ALIVE     the port on loopback that answers health checks; 8082
#   PROXY_USER      the user; dagster
#   PROXY_PASSWORD  the password: at least 12 characters
set -euo pipefail

fail() { printf 'proxy: %s\n' "$*" >&2; exit 1; }

# checked NAME VALUE PATTERN WHAT: the value, if nginx cannot read anything else in it.
checked() {
  [[ $2 =~ ^$3$ ]] || fail "$1 is not $4: nginx would read something else; nothing was started"
  printf '%s' "$2"
}

[ "$(id -u)" != 0 ] || fail "this is root: start it as a user that owns nothing else"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
address='[A-Za-z0-9.-]+:[0-9]+'
listen=$(checked PROXY_LISTEN "${PROXY_LISTEN:-0.0.0.0:8080}" "$address" HOST:PORT)
upstream=$(checked PROXY_UPSTREAM "${PROXY_UPSTREAM:-127.0.0.1:3000}" "$address" HOST:PORT)
reports=$(checked PROXY_REPORTS "${PROXY_REPORTS:-127.0.0.1:8081}" "$address" HOST:PORT)
alive=$(checked PROXY_ALIVE "${PROXY_ALIVE:-8082}" '[0-9]+' 'a port')
names=$(checked PROXY_NAMES "${PROXY_NAMES:-localhost 127.0.0.1}" '[A-Za-z0-9.-]+( [A-Za-z0-9.-]+)*' 'names with spaces between them')
user=$(checked PROXY_USER "${PROXY_USER:-dagster}" '[A-Za-z0-9._@-]+' 'a name of letters and digits')
[ ${#PROXY_PASSWORD} -ge 12 ] || fail "PROXY_PASSWORD has fewer than 12 characters: choose a longer one"

umask 077
folder=$(mktemp -d)
printf '%s:%s\n' "$user" "$(openssl passwd -6 -stdin <<<"$PROXY_PASSWORD")" >"$folder/users"
text=$(sed -e "s|@FOLDER@|$folder|g" -e "s|@LISTEN@|$listen|g" -e "s|@NAMES@|$names|g" -e "s|@UPSTREAM@|$upstream|g" \
  -e "s|@REPORTS@|$reports|g" -e "s|@ALIVE@|$alive|g" "$here/nginx.conf")
# Not by sed, whose command line others can read.
printf '%s\n' "${text//@TOKEN@/$(openssl rand -hex 16)}" >"$folder/nginx.conf"
exec env -i PATH="$PATH" nginx -e stderr -p "$folder" -c "$folder/nginx.conf"

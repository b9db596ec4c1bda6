#!/usr/bin/env bash
# rootfs.sh JRE TAR JAR...: writes the root folder of a Kafka image, so that none has to be pulled. It
# holds the jars, the JRE, and this machine's /bin/sh with the shared libraries that they need.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd) jre=$1 tar=$2 sh=$(readlink -f /bin/sh)
shift 2
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root"/{bin,etc/kafka/{docker,secrets},opt/kafka/{config,libs},mnt/shared/config,tmp,var/lib/kafka/data}
cp -L "$@" "$root/opt/kafka/libs"
cp -rL "$jre" "$root/opt/java"
"$root/opt/java/bin/java" -Xshare:dump >/dev/null # a wheel leaves out Java's class archive; it starts sooner with it
cp "$sh" "$root/bin/sh"
ldd "$sh" "$jre"/bin/java "$jre"/lib/server/libjvm.so "$jre"/lib/lib{net,nio,zip,extnet}.so |
  grep -oE '\s/lib[^ ]+' | sort -u | xargs cp -L --parents -t "$root"
echo 'kafka:x:1000:1000::/tmp:/bin/sh' >"$root/etc/passwd"
cp "$here/run" "$root/etc/kafka/docker/run"
chmod -R u+rwX,go+rX "$root"
chmod 1777 "$root/tmp"
tar --create --file "$tar" --directory "$root" --owner 1000 --group 1000 --numeric-owner .

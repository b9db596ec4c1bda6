#!/usr/bin/env bash
# debian.sh TAG: makes an image of Debian from its packages, where none can be pulled. It trusts what this machine
# trusts, since an image is built with the machine's access to package indexes.
set -euo pipefail

mmdebstrap --quiet --variant=apt --include=ca-certificates \
  --customize-hook='sync-in /usr/local/share/ca-certificates /usr/local/share/ca-certificates' \
  --customize-hook='chroot "$1" update-ca-certificates >&2' bookworm - | docker import - "$1"

#!/usr/bin/env bash
# rootfs.sh BIN OUT: the files of an image, as a folder: the programs of BIN stripped, the libraries
# that they load, CA certificates, the user 65532 and the demo model. There is no shell in it.
set -euo pipefail
bin=${1:?rootfs.sh BIN OUT}
out=${2:?rootfs.sh BIN OUT}
here=$(cd "$(dirname "$0")" && pwd)
if [ -e "$out" ]; then
  echo "rootfs.sh: $out is there already: name a new folder" >&2
  exit 2
fi
programs=(baton baton-router baton-prefill baton-decode)
for program in "${programs[@]}"; do
  if [ ! -x "$bin/$program" ]; then
    echo "rootfs.sh: no program $bin/$program: build the programs first" >&2
    exit 2
  fi
done
mkdir -p "$out"/{usr/bin,usr/share/baton/models,etc/ssl/certs,etc/baton,models,var/lib/baton,tmp}
for program in "${programs[@]}"; do
  strip -o "$out/usr/bin/$program" "$bin/$program"
done
# ldd prints "NAME => PATH (ADDRESS)", and the loader, whose path programs name, without an arrow.
libraries=$(for program in "${programs[@]}"; do ldd "$bin/$program"; done)
if grep 'not found' <<<"$libraries" >&2; then
  exit 1
fi
for library in $(grep -o '/[^ ]*' <<<"$libraries" | sort -u); do
  install -D -m 755 "$library" "$out$library"
done
cp -L /etc/ssl/certs/ca-certificates.crt "$out/etc/ssl/certs/"
echo 'baton:x:65532:65532::/var/lib/baton:/sbin/nologin' >"$out/etc/passwd"
echo 'baton:x:65532:' >"$out/etc/group"
echo 'hosts: files dns' >"$out/etc/nsswitch.conf"
cp -r "$here/../models/tiny-kjv" "$out/usr/share/baton/models/tiny-kjv"
chmod -R u=rwX,go=rX "$out"
chmod 1777 "$out/tmp"

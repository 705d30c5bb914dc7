#!/bin/sh
# Installs the library for C: bindings/capi/install.sh [PREFIX], after `cargo build --release -p
# uzswap-capi`. PREFIX is /usr/local if nothing is said. BUILT is the folder with what was built,
# DESTDIR is put before all paths, as packagers want it.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
prefix=${1:-/usr/local}
built=${BUILT:-${CARGO_TARGET_DIR:-$here/../../target}/release}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/../../Cargo.toml" | head -n 1)
root=${DESTDIR:-}$prefix
install -d "$root/include" "$root/lib/pkgconfig"
install -m 644 "$here/include/uzswap.h" "$root/include/"
install -m 755 "$built/libuzswap_c.so" "$root/lib/libuzswap.so.$version"
ln -sf "libuzswap.so.$version" "$root/lib/libuzswap.so.0"
ln -sf libuzswap.so.0 "$root/lib/libuzswap.so"
install -m 644 "$built/libuzswap_c.a" "$root/lib/libuzswap.a"
cat > "$root/lib/pkgconfig/uzswap.pc" <<END
prefix=$prefix
Name: uzswap
Description: Pools of compressed pages, and regions of memory that may be larger than RAM
Version: $version
Cflags: -I\${prefix}/include
Libs: -L\${prefix}/lib -luzswap
Libs.private: -lpthread -ldl -lm -lgcc_s
END
if [ -z "${DESTDIR:-}" ] && [ "$(id -u)" = 0 ] && command -v ldconfig >/dev/null; then ldconfig; fi

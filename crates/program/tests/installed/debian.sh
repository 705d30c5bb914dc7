# In the root of `try.sh`: the Debian package.
set -ex
export DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin
if dpkg --status uzswap >/dev/null 2>&1; then
    dpkg --purge uzswap
fi
if getent group uzswap; then
    exit 77
fi
apt-get install --yes --no-install-recommends --option Dpkg::Use-Pty=0 "$1"
dpkg --status uzswap | grep '^Status: install ok installed'
dpkg --listfiles uzswap > /tmp/files
grep -qx /usr/share/doc/uzswap/THIRD-PARTY-NOTICES.md /tmp/files

uzswap --version
for file in /usr/share/man/man1/uzswap-run.1.gz /usr/share/bash-completion/completions/uzswap \
    /usr/share/zsh/vendor-completions/_uzswap /usr/share/fish/vendor_completions.d/uzswap.fish \
    /usr/lib/udev/rules.d/60-uzswap.rules; do
    grep -F -x "$file" /tmp/files
    test -s "$file" || grep '^path-exclude' -r /etc/dpkg/dpkg.cfg.d
done

. /tmp/manage.sh

# The group may page, as an ordinary user.
group=$(getent group uzswap | cut -d: -f3)
if [ -c /dev/userfaultfd ]; then
    test "$(stat -c '%U %G %a' /dev/userfaultfd)" = "root uzswap 660"
    test "$(setpriv --reuid=65534 --regid=65534 --groups="$group" uzswap run --ram 64M -- echo ran)" = ran
    # Who is not in it is told how to be.
    if [ "$(cat /proc/sys/vm/unprivileged_userfaultfd)" = 0 ]; then
        said=$(setpriv --reuid=65534 --regid=65534 --clear-groups uzswap check 2>&1 || true)
        echo "$said" | grep 'usermod --append --groups uzswap' || echo "$said" | grep 'a container of'
    fi
fi

# The device's units.
sed -n 's/^# \(\[\|.* = \)/\1/p' /usr/share/doc/uzswap/examples/uzswap-generator.conf > /etc/uzswap-generator.conf \
    || grep '^path-exclude' -r /etc/dpkg/dpkg.cfg.d
test -s /etc/uzswap-generator.conf || printf '[uzswap0]\nsize = 64\n' > /etc/uzswap-generator.conf
mkdir /tmp/units
/usr/lib/systemd/system-generators/uzswap-generator /tmp/units /tmp/units /tmp/units
grep '^ExecStart=/usr/bin/uzswap device swap --size ' /tmp/units/uzswap0.service
test -L /tmp/units/swap.target.wants/uzswap0.service
if command -v nbdkit; then
    nbdkit --dump-plugin uzswap | grep '^name=uzswap'
fi

apt-get remove --yes --option Dpkg::Use-Pty=0 uzswap
test ! -e /usr/bin/uzswap
test -e /etc/uzswap-generator.conf
if [ -c /dev/userfaultfd ]; then
    test "$(stat -c '%U %G %a' /dev/userfaultfd)" = "root root 600"
fi
apt-get purge --yes --option Dpkg::Use-Pty=0 uzswap
test ! -e /etc/uzswap-generator.conf
if getent group uzswap || dpkg --status uzswap 2>/dev/null; then
    exit 1
fi
while read -r file; do
    test -d "$file" || test ! -e "$file"
done < /tmp/files

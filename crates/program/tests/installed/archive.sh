# In the root of `try.sh`: the archive of the static program.
set -ex
PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
tar -C /usr/local --strip-components=1 -xzf "$1"
uzswap --version
for file in man/man1/uzswap-run.1 bash-completion/completions/uzswap zsh/site-functions/_uzswap \
    fish/vendor_completions.d/uzswap.fish doc/uzswap/THIRD-PARTY-NOTICES.md doc/uzswap/LICENSE-MIT \
    doc/uzswap/LGPL-2.1 doc/uzswap/user/running.md; do
    test -s "/usr/local/share/$file"
done
if command -v mandoc; then
    mandoc -T utf8 /usr/local/share/man/man1/uzswap-run.1 | grep -q 'Exit status'
fi
. /tmp/manage.sh

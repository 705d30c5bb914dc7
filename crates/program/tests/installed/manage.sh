# Has uzswap run a dynamic and a static program that want several times their budget. Perl is in
# every Debian.
manage() {
    said=$(uzswap run --ram 24M --report /tmp/report.json -- "$@")
    test "$said" = 100000
    grep -E -q '"zswpout": ?[1-9]' /tmp/report.json
}
if [ -c /dev/userfaultfd ]; then
    manage perl -e 'push @all, sprintf "%400d", $_ for 1 .. 100000; print scalar @all'
    if [ -x /tmp/busybox ]; then
        manage /tmp/busybox awk 'BEGIN { for (k = 0; k < 100000; k++) all[k] = sprintf("%400d", k); print length(all) }'
    fi
fi

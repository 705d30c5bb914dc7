#!/usr/bin/env bash
# A JVM in a container without swap, with 320 MiB: 3 million records, summed and sorted. Needs a
# JDK; installs nothing. With a heap that is large enough the kernel kills it. XMX= has the JVM
# choose its heap by the container's limit: 126 MiB, too small, so it throws OutOfMemoryError, also
# under uzswap.
. "$(dirname "$0")/compare.sh"
need javac java
[ -e "$work/Accounts.class" ] || javac -d "$work" "$here/../tour/Accounts.java"
# shellcheck disable=SC2086
compare java 320M java -XX:+UseSerialGC -Xmn16m ${XMX--Xmx1g} -cp "$work" Accounts 3000000

# A hash of arrays, filled, read in the order of its sorted keys, and changed.
use strict;
my $count = shift // 150_000;
my %table;
push @{$table{"w" . ($_ * 7919 % $count)}}, $_, "v$_" for 1 .. $count;
my $total = 0;
for my $turn (1 .. 2) {
    for my $key (sort keys %table) { $total += $table{$key}[0]; push @{$table{$key}}, $turn }
}
print scalar(keys %table), " $total\n";

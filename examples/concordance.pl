#!/usr/bin/perl
# A job that wants memory: keeps every word of the text files below a directory (given, or this one) with its place, then
# looks for what is said twice: the longest runs of words that stand in two places. Prints the same with any memory.
use strict;
use warnings;

my @todo = @ARGV ? @ARGV : '.';
my (@words, @files);
while (defined(my $path = shift @todo)) {
    if (-d $path && !-l $path) {
        opendir my $directory, $path or next;
        push @todo, map "$path/$_", sort grep !/^(\.|target$)/, readdir $directory;
    } elsif ($path =~ /\.(rs|md|c|pl|toml)$/ && open my $file, '<', $path) {
        push @files, $path;
        while (my $line = <$file>) {
            push @words, {text => lc $1, file => $#files, line => $., column => $-[0]} while $line =~ /(\w+)/g;
        }
    }
}
my %count;
$count{$_->{text}}++ for @words;
my @frequent = sort { $count{$b} <=> $count{$a} || $a cmp $b } keys %count;

my ($length, %seen, @twice) = (24);
for (my $at = 0; $at + $length <= @words; $at += $length / 2) {
    my $run = join ' ', map $_->{text}, @words[$at .. $at + $length - 1];
    push @twice, [$seen{$run}, $at] if defined $seen{$run};
    $seen{$run} //= $at;
}
printf "%d words, %d different, in %d files; most frequent: %s\n",
    scalar @words, scalar keys %count, scalar @files, join ' ', @frequent[0 .. 6];
printf "%d runs of %d words stand twice; the first at %s\n", scalar @twice, $length,
    @twice ? join ' and ', map "$files[$_->{file}]:$_->{line}", @words[@{$twice[0]}] : 'no place';

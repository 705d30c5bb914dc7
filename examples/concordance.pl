#!/usr/bin/perl
# A job that wants memory: writes a library of books, keeps every word with its place, then looks
# for passages that stand in two places. The books are the same each time, and so is what it prints,
# with any memory.
use strict;
use warnings;

my ($BOOKS, $LINES, $WORDS) = (180, 310, 10);    # lines of a book, words of a line
my $PASSAGE = 24;                                # words
srand 7;

# Words of two to four syllables; the first ones are the most frequent, as in any language.
my @syllables = map { my $begin = $_; map "$begin$_", qw(a e i o u an el in or us) } qw(b d f k l m n r s t v z);
my @vocabulary = map { join '', map $syllables[rand @syllables], 0 .. 1 + rand 3 } 1 .. 15_000;

my (@words, @copied);
for my $book (1 .. $BOOKS) {
    for my $line (1 .. $LINES) {
        # Now and then an author copies three lines of an older book.
        if (@words > 1000 && rand() < 0.002) {
            my $from = int rand(@words - 100);
            @copied = map $_->{text}, @words[$from .. $from + 3 * $WORDS - 1];
        }
        for my $column (1 .. $WORDS) {
            my $text = @copied ? shift @copied : $vocabulary[int(@vocabulary**rand) - 1];
            push @words, {text => $text, book => $book, line => $line, column => $column};
        }
    }
}

my %count;
$count{$_->{text}}++ for @words;
my @frequent = sort { $count{$b} <=> $count{$a} || $a cmp $b } keys %count;

my (%seen, @twice);
for (my $at = 0; $at + $PASSAGE <= @words; $at += 3) {
    my $text = join ' ', map $_->{text}, @words[$at .. $at + $PASSAGE - 1];
    push @twice, [$seen{$text}, $at] if defined $seen{$text};
    $seen{$text} //= $at;
}

printf "%d words, %d different, in %d books; most frequent: %s\n",
    scalar @words, scalar keys %count, $BOOKS, join ' ', @frequent[0 .. 4];
printf "%d passages of %d words stand twice; the first in %s\n", scalar @twice, $PASSAGE,
    join ' and ', map "book $_->{book}, line $_->{line}", @words[@{$twice[0]}];

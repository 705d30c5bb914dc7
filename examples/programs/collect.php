<?php
// A list of pairs of objects that refer to each other: the collector of cycles walks all of them,
// each time that ten thousand more may be garbage.
class Part { public $other; public $name; }
$kept = [];
$sum = 0;
for ($round = 0; $round < 1000000; $round++) {
    $one = new Part; $two = new Part;
    $one->other = $two; $two->other = $one;
    $one->name = "part $round"; $two->name = str_repeat(chr(97 + $round % 26), 40);
    if ($round % 3) $kept[] = $one;
    if ($kept) $sum += strlen($kept[($round * 7919) % count($kept)]->other->name);
}
echo count($kept), " $sum ", gc_status()["runs"], " runs\n";

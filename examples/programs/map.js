// A map of small objects, iterated, then read at random: a copying collector.
const count = Number(process.argv[2] || 200000);
const map = new Map();
for (let n = 0; n < count; n++) map.set("k" + n, { id: n, name: "n" + n, tags: [n % 7, n % 11] });
let total = 0;
for (let turn = 0; turn < 3; turn++) for (const value of map.values()) total += value.id + value.tags[1];
let seed = 12345;
for (let n = 0; n < count * 2; n++) {
  seed = (seed * 1103515245 + 12345) % 2147483648;
  total += map.get("k" + (seed % count)).tags[0];
}
console.log(map.size, total);

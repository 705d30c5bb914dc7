# Objects in hashes, filled, sorted, changed: a marking collector.
count = (ARGV[0] || 150_000).to_i
table = {}
count.times { |n| table["key#{n * 7919 % count}"] = [n, "v#{n}"] }
total = 0
3.times do |turn|
  table.keys.sort.each { |key| total += table[key][0]; table[key][1] = "v#{turn}" }
end
puts table.size, total

-- Tables and indices in memory: random insertions into B-trees, then joins.
PRAGMA cache_size = -2000000;
CREATE TABLE words (id INTEGER PRIMARY KEY, word TEXT, rank INTEGER);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 900000)
INSERT INTO words SELECT i, 'word-' || (i * 7919 % 900019), i * 104729 % 1000003 FROM n;
CREATE INDEX by_word ON words (word);
CREATE INDEX by_rank ON words (rank);
SELECT count(*), sum(a.rank) FROM words a JOIN words b ON b.word = 'word-' || (a.rank % 900019);
UPDATE words SET rank = rank * 31 % 1000003 WHERE id % 3 = 0;
SELECT count(*), sum(id) FROM words WHERE rank BETWEEN 1000 AND 900000;

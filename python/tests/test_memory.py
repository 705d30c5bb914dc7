"""Arrays in a budget of a third of what they want, compared with plain ones. Run with `python -m unittest discover python/tests`."""

import os
import subprocess
import threading
import unittest

import numpy
import uzswap

RAM = 48 << 20
ROWS, COLUMNS = 4096, 4608  # 144 MiB of float64


def anonymous_bytes():
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("RssAnon:"))
    return int(line.split()[1]) << 10


def can_page():
    try:
        with uzswap.memory(ram=RAM):
            return True
    except OSError as error:
        print(f"skipped: {error}")
        return False


CAN_PAGE = can_page()


@unittest.skipUnless(CAN_PAGE, "userfaultfd is not permitted here")
class Arrays(unittest.TestCase):
    def test_numpy(self):
        """The same numbers as in rows of plain arrays, and the budget is held."""
        before = anonymous_bytes()
        with uzswap.memory(ram=RAM):
            a = numpy.zeros((ROWS, COLUMNS))
        self.assertEqual(type(a), numpy.ndarray)
        self.assertGreaterEqual(uzswap.stats().region_bytes, a.nbytes)
        peak = 0
        for row in range(ROWS):
            a[row] = numpy.arange(COLUMNS) // 7 + row
            peak = max(peak, anonymous_bytes())
        for row in range(ROWS):
            self.assertTrue((a[row] == numpy.arange(COLUMNS) // 7 + row).all(), row)
            peak = max(peak, anonymous_bytes())
        self.assertLessEqual(peak - before, RAM * 1.03 + (8 << 20))
        sums = [(numpy.arange(COLUMNS) // 7 + row).sum() for row in range(ROWS)]
        self.assertTrue((a.sum(axis=1) == sums).all())
        figures = uzswap.stats()
        self.assertGreater(figures.pages_out, 0)
        self.assertGreater(figures.pages_in, 0)
        self.assertEqual(figures.ram_bytes, RAM)

    def test_operations(self):
        """Sorting, broadcasting, slices, copies, resizing."""
        random = numpy.random.default_rng(1)
        plain = random.integers(0, 1 << 20, 4 << 20)
        with uzswap.memory(ram=RAM):
            paged = plain.copy()
            self.assertGreaterEqual(uzswap.stats().regions, 1)
            paged.sort()
            squares = paged * paged + paged[::-1]
            paged.resize(6 << 20, refcheck=False)
        plain.sort()
        self.assertTrue((paged[: 4 << 20] == plain).all())
        self.assertFalse(paged[4 << 20 :].any())
        self.assertTrue((squares == plain * plain + plain[::-1]).all())
        paged.resize(100, refcheck=False)
        self.assertTrue((paged == plain[:100]).all())

    def test_what_is_freed_is_gone(self):
        del_before = uzswap.stats().regions
        with uzswap.memory(ram=RAM):
            for _ in range(20):
                a = numpy.ones(8 << 20, dtype=numpy.uint8)
                self.assertTrue(a.all())
                z = numpy.zeros(8 << 20, dtype=numpy.uint8)
                self.assertFalse(z.any())
        del a, z
        self.assertEqual(uzswap.stats().regions, del_before)

    def test_small_arrays_and_the_end_of_a_context(self):
        with uzswap.memory(ram=RAM, smallest="2M"):
            before = uzswap.stats().regions
            small = numpy.zeros(1 << 20, dtype=numpy.uint8)
            self.assertEqual(uzswap.stats().regions, before)
        after = numpy.zeros(8 << 20, dtype=numpy.uint8)
        self.assertEqual(uzswap.stats().regions, before)
        self.assertFalse(small.any() or after.any())

    def test_threads(self):
        with uzswap.memory(ram=RAM):
            a = numpy.zeros((8, 2 << 20))
        errors = []

        def work(row):
            a[row] = numpy.arange(2 << 20) // 9 * row
            if not (a[row] == numpy.arange(2 << 20) // 9 * row).all():
                errors.append(row)

        threads = [threading.Thread(target=work, args=[row]) for row in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])

    def test_fork(self):
        with uzswap.memory(ram=RAM):
            a = numpy.arange(12 << 20) // 50
        child = os.fork()
        if child == 0:
            same = (a == numpy.arange(12 << 20) // 50).all()
            del a
            os._exit(7 if same else 1)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 7)
        self.assertTrue((a == numpy.arange(12 << 20) // 50).all())
        self.assertEqual(subprocess.run(["echo", "hello"], capture_output=True).stdout, b"hello\n")

    def test_pandas(self):
        """A join and a grouping, as with plain frames."""
        try:
            import pandas
        except ImportError as error:
            self.skipTest(str(error))

        def job():
            keys = numpy.arange(2 << 20) % 1009
            frame = pandas.DataFrame({"key": keys, "value": numpy.arange(2 << 20) // 3, "more": keys * 0.5})
            names = pandas.DataFrame({"key": numpy.arange(1009), "factor": numpy.arange(1009) % 17})
            joined = frame.merge(names, on="key")
            joined["product"] = joined["value"] * joined["factor"] + joined["more"]
            return joined.groupby("factor")["product"].agg(["sum", "min", "max", "count"])

        plain = job()
        with uzswap.memory(ram=RAM):
            paged = job()
        pandas.testing.assert_frame_equal(plain, paged)

    def test_wrong_arguments(self):
        for wrong in ["", "two", "5X", "-1"]:
            with self.assertRaises(ValueError):
                uzswap.memory(ram=wrong)
        with self.assertRaises(ValueError):
            with uzswap.memory(ram=1000):
                pass


class Pages(unittest.TestCase):
    def test_round_trip(self):
        page = bytes(index // 40 for index in range(uzswap.PAGE_SIZE))
        self.assertIn("lz4", [name.split("[")[0] for name in uzswap.compressors()])
        for name in ["auto", "t16", "t16h", "lz4", "zstd:3", "deflate", "none"]:
            for pages in [1, 4, 16]:
                data = page * pages
                packed = uzswap.compress(data, name)
                self.assertLessEqual(len(packed), len(data))
                self.assertEqual(uzswap.decompress(packed, len(data), name), data, (name, pages))
        self.assertLess(len(uzswap.compress(page)), 1000)
        noise = os.urandom(uzswap.PAGE_SIZE)
        self.assertEqual(uzswap.decompress(uzswap.compress(noise)), noise)

    def test_wrong_pages(self):
        for wrong in [b"", b"x" * 100, b"x" * 4097, b"x" * (1 << 17)]:
            with self.assertRaises(ValueError):
                uzswap.compress(wrong)
        with self.assertRaises(ValueError):
            uzswap.compress(b"x" * 4096, "nonsense")
        with self.assertRaises(ValueError):
            uzswap.decompress(b"\xff" * 100, compressor="lz4")


class Program(unittest.TestCase):
    def test_it_is_on_the_path(self):
        try:
            version = subprocess.run(["uzswap", "--version"], capture_output=True, text=True)
        except FileNotFoundError:
            self.skipTest("run in the environment that the wheel was installed in")
        self.assertEqual(version.returncode, 0, version.stderr)
        self.assertTrue(version.stdout.startswith("uzswap"), version.stdout)


if __name__ == "__main__":
    unittest.main()

"""Pages through compressors. Run with `python -m unittest discover bindings/python/tests`, the package being installed."""

import os
import unittest

import uzswap

PAGE = bytes(index // 40 for index in range(uzswap.PAGE_SIZE))


class Pages(unittest.TestCase):
    def test_round_trip(self):
        self.assertIn("lz4", [name.split("[")[0] for name in uzswap.compressors()])
        for name in ["auto", "t16", "t16h", "lz4", "zstd:3", "deflate", "none"]:
            for pages in [1, 4, 16]:
                data = PAGE * pages
                packed = uzswap.compress(data, name)
                self.assertLessEqual(len(packed), len(data))
                self.assertEqual(uzswap.decompress(packed, len(data), name), data, (name, pages))
        self.assertLess(len(uzswap.compress(PAGE)), 1000)
        noise = os.urandom(uzswap.PAGE_SIZE)
        self.assertEqual(uzswap.decompress(uzswap.compress(noise)), noise)

    def test_what_shows_its_memory(self):
        for data in [bytearray(PAGE), memoryview(PAGE), memoryview(PAGE).cast("d")]:
            self.assertEqual(uzswap.decompress(uzswap.compress(data)), PAGE)

    def test_sizes(self):
        noise = os.urandom(uzswap.PAGE_SIZE)
        sizes = uzswap.sizes(PAGE + noise + PAGE, "lz4")
        self.assertEqual(sizes, [len(uzswap.compress(page, "lz4")) for page in [PAGE, noise, PAGE]])
        self.assertEqual(uzswap.sizes(PAGE * 9, "zstd", unit=4 * 4096)[:2], [len(uzswap.compress(PAGE * 4, "zstd"))] * 2)
        self.assertEqual(len(uzswap.sizes(PAGE * 9, unit=4 * 4096)), 3)
        self.assertEqual(uzswap.sizes(b""), [])

    def test_wrong_pages(self):
        for wrong in [b"", b"x" * 100, b"x" * 4097, b"x" * (1 << 17)]:
            with self.assertRaises(ValueError):
                uzswap.compress(wrong)
        for length in [0, 100, 1 << 20]:
            with self.assertRaises(ValueError):
                uzswap.decompress(b"x", length)
        with self.assertRaises(ValueError):
            uzswap.compress(PAGE, "nonsense")
        with self.assertRaisesRegex(ValueError, "leave out work="):
            uzswap.compress(PAGE, "deflate-iaa:work=null")
        with self.assertRaises(ValueError):
            uzswap.decompress(b"\xff" * 100, compressor="lz4")
        with self.assertRaises(ValueError):
            uzswap.decompress(uzswap.compress(PAGE), 8192)
        with self.assertRaises(ValueError):
            uzswap.sizes(b"x" * 5000)
        with self.assertRaises(ValueError):
            uzswap.sizes(PAGE, unit=5000)
        with self.assertRaises(TypeError):
            uzswap.compress("text")

    def test_nothing_is_paged_before_it_is_asked_for(self):
        self.assertEqual(set(uzswap.stats()), {0})


if __name__ == "__main__":
    unittest.main()

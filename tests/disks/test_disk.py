"""Whether disk.py loses what it has to lose, and keeps what it has to keep."""

import errno
import random
import stat
import unittest

from disk import Disk, Fault, File, PowerLost


def disk_with_file(content=b"old"):
    disk = Disk()
    file = disk.add(File, disk.root, "file", stat.S_IFREG | 0o600)
    disk.write(file, 0, content)
    disk.sync(file)
    disk.sync(disk.root)
    return disk, file


def left(disk, style="lost", seed=1):
    found = disk.after_power_loss(random.Random(seed), style).find("file")
    return None if found is None else bytes(found.live)


class PowerLoss(unittest.TestCase):
    def test_what_is_durable_stays(self):
        for style in ("lost", "torn", "reordered"):
            self.assertEqual(left(disk_with_file()[0], style), b"old")

    def test_what_is_not_durable_goes(self):
        disk, file = disk_with_file()
        disk.write(file, 0, b"new")
        self.assertEqual(bytes(file.live), b"new")
        self.assertEqual(left(disk), b"old")

    def test_a_file_without_a_durable_name_goes(self):
        disk = Disk()
        file = disk.add(File, disk.root, "file", stat.S_IFREG | 0o600)
        disk.sync(file)
        self.assertIsNone(left(disk))

    def test_a_write_is_torn_and_writes_are_reordered(self):
        disk, file = disk_with_file(b"")
        disk.write(file, 0, b"a" * 1000)
        disk.write(file, 1000, b"b" * 1000)
        lengths = {len(left(disk, "torn", seed)) for seed in range(100)}
        self.assertGreater(len(lengths - {0, 1000, 2000}), 10)
        self.assertIn(bytes(1000) + b"b" * 1000, {left(disk, "reordered", seed) for seed in range(100)})

    def test_after_a_failed_fsync_the_next_one_saves_nothing(self):
        disk, file = disk_with_file()
        disk.faults.append(Fault("sync", "file", errno.EIO))
        disk.write(file, 0, b"new")
        self.assertRaises(OSError, disk.sync, file)
        disk.sync(file)
        self.assertEqual((bytes(file.live), left(disk)), (b"new", b"old"))


class Faults(unittest.TestCase):
    def test_only_the_counted_operations_meet_it(self):
        disk, file = disk_with_file()
        disk.faults.append(Fault("write", "file", errno.ENOSPC, after=1, count=1))
        disk.write(file, 0, b"1")
        self.assertRaises(OSError, disk.write, file, 0, b"2")
        disk.write(file, 0, b"3")
        self.assertEqual(len(disk.faults[0].met), 1)

    def test_a_dropped_fsync_makes_nothing_durable(self):
        disk, file = disk_with_file()
        disk.faults.append(Fault("sync", "file", "drop", count=-1))
        disk.write(file, 0, b"new")
        disk.sync(file)
        self.assertEqual(left(disk), b"old")

    def test_no_operation_comes_after_the_power_loss(self):
        disk, file = disk_with_file()
        disk.faults.append(Fault("write", "file", "power"))
        self.assertRaises(PowerLost, disk.write, file, 0, b"new")
        self.assertTrue(disk.is_off.is_set())

    def test_a_bad_block_stays_bad_until_another_file_takes_its_place(self):
        disk, file = disk_with_file(bytes(3 * 4096))
        disk.faults.append(Fault("read", "file", "bad"))
        for _ in range(2):
            self.assertRaises(OSError, disk.read, file, 0, 3 * 4096)
        self.assertRaises(OSError, disk.write, file, 5000, b"new")
        self.assertEqual(disk.read(file, 8192, 4096), bytes(4096))
        left_disk = disk.after_power_loss(random.Random(1), "lost")
        self.assertRaises(OSError, left_disk.read, left_disk.find("file"), 4096, 1)
        other = disk.add(File, disk.root, "file.tmp", stat.S_IFREG | 0o600)
        disk.write(other, 0, b"new")
        disk.rename(disk.root, "file.tmp", disk.root, "file", is_exclusive=False)
        self.assertEqual(disk.read(disk.find("file"), 0, 4096), b"new")

    def test_a_fault_of_old_files_leaves_new_ones_alone(self):
        disk, file = disk_with_file()
        disk.faults.append(Fault("read", "", errno.EIO, count=-1))
        disk.faults[0].last_file = disk.numbers
        other = disk.add(File, disk.root, "other", stat.S_IFREG | 0o600)
        self.assertRaises(OSError, disk.read, file, 0, 1)
        self.assertEqual(disk.read(other, 0, 1), b"")


if __name__ == "__main__":
    unittest.main()

"""Whether lives.py sees what it has to see."""

import unittest

from lives import Line, recovery, two_lives


def written(*processes):
    """Lines of (rank, pid, first millisecond, last millisecond), one each millisecond, in the order of time; a step for each."""
    lines = [Line(rank, pid, ms, ms - begin, ms) for rank, pid, begin, end in processes for ms in range(begin, end + 1)]
    return sorted(lines, key=lambda line: line.ms)


class TwoLives(unittest.TestCase):
    def test_one_life_after_the_other(self):
        self.assertEqual(two_lives(written((0, 10, 0, 90), (1, 11, 5, 95), (0, 20, 100, 190), (1, 21, 110, 200))), [])

    def test_an_old_rank_beside_its_successor(self):
        self.assertEqual(len(two_lives(written((0, 10, 0, 101), (0, 20, 100, 190)))), 1)

    def test_an_old_rank_beside_new_ranks_of_others(self):
        self.assertEqual(len(two_lives(written((0, 10, 0, 101), (1, 11, 0, 90), (1, 21, 100, 190)))), 1)

    def test_a_life_of_which_only_one_rank_came_up(self):
        self.assertEqual(two_lives(written((0, 10, 0, 90), (1, 11, 0, 90), (1, 21, 100, 110), (0, 30, 120, 190), (1, 31, 130, 190))), [])

    def test_a_line_that_a_restored_process_writes_again(self):
        lines = written((0, 10, 0, 90), (0, 20, 100, 190))
        self.assertEqual(two_lives([*lines, lines[40]]), [])


class Recovery(unittest.TestCase):
    def test_from_the_fault_to_the_first_steps_of_the_last_rank(self):
        lines = written((0, 10, 0, 900), (1, 11, 0, 900), (0, 20, 2000, 3000), (1, 21, 2500, 3000))
        self.assertEqual(recovery(lines, {0: lines[0], 1: lines[1]}, 1000), 1.505)

    def test_a_pause(self):
        lines = [line for line in written((0, 10, 0, 9000)) if not 1200 < line.ms < 4200]
        self.assertEqual(recovery(lines, {0: lines[0]}, 1000), 3.2)
        self.assertEqual(recovery(lines, {0: lines[0]}, 5000), 0)


if __name__ == "__main__":
    unittest.main()

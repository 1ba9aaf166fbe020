//! Any M lost slices of K + M are computed from the others.

use parity::{Code, Kernel, Matrix};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next()).unwrap() % bound
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next().to_le_bytes()[0]).collect()
    }
}

/// Data of different lengths, its parity, and all of them filled up to one length.
fn members(code: &Code, random: &mut Random, length: usize) -> Vec<Vec<u8>> {
    let data: Vec<Vec<u8>> = (0..code.data())
        .map(|i| {
            let count = if i == 0 { length } else { random.below(length + 1) };
            random.bytes(count)
        })
        .collect();
    let mut parity = vec![vec![0; length]; code.parity()];
    let slices: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    code.encode(Kernel::best(), &slices, &mut parity.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
    let mut all: Vec<Vec<u8>> = data.into_iter().chain(parity).collect();
    all.iter_mut().for_each(|slice| slice.resize(length, 0));
    all
}

fn lose(code: &Code, members: &[Vec<u8>], lost: &[usize]) {
    let present: Vec<usize> = (0..members.len()).filter(|member| !lost.contains(member)).collect();
    let recovery = code.recovery(&present, lost).expect("enough is left");
    let sources: Vec<&[u8]> = recovery.sources().iter().map(|member| members[*member].as_slice()).collect();
    let mut found = vec![vec![0xee; members[0].len()]; lost.len()];
    recovery.run(Kernel::best(), &sources, &mut found.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
    for (member, found) in lost.iter().zip(found) {
        assert!(found == members[*member], "{}+{}, {lost:?} lost: {member}", code.data(), code.parity());
    }
}

/// Calls `each` with all sets of `count` numbers below `bound`.
fn subsets(bound: usize, count: usize, each: &mut impl FnMut(&[usize])) {
    let mut set: Vec<usize> = (0..count).collect();
    loop {
        each(&set);
        let Some(place) = (0..count).rev().find(|i| set[*i] < bound - count + i) else { return };
        set[place] += 1;
        for i in place + 1..count {
            set[i] = set[i - 1] + 1;
        }
    }
}

/// Sets of losses that one shape is tested with, at most: all of them up to 8 + 4.
const SETS_MAX: usize = 500;

#[test]
fn any_m_of_k_plus_m_may_be_lost() {
    let mut random = Random(7);
    let mut tested = 0;
    for (k, m) in (1..=12).flat_map(|k| (1..=12).map(move |m| (k, m))) {
        let code = Code::new(k, m).expect("a shape");
        let members = members(&code, &mut random, 40);
        let sets = (0..m).fold(1.0, |product, i| product * ((k + m - i) as f64) / ((i + 1) as f64));
        if sets <= SETS_MAX as f64 {
            subsets(k + m, m, &mut |lost| {
                lose(&code, &members, lost);
                tested += 1;
            });
            continue;
        }
        for _ in 0..SETS_MAX {
            let mut numbers: Vec<usize> = (0..k + m).collect();
            let lost: Vec<usize> = (0..m).map(|_| numbers.swap_remove(random.below(numbers.len()))).collect();
            lose(&code, &members, &lost);
            tested += 1;
        }
    }
    assert!(tested > 30_000, "{tested}");
}

/// K of K + M members are left: some data, and as much parity as data is lost. All of it follows from them if the coefficients of this parity for this data, a
/// square part of the matrix, can be inverted. Matrices of smaller codes are parts of those of larger ones, so the parts of one matrix are all sets of losses of all these codes.
#[test]
fn every_set_of_losses_of_every_code_up_to_twelve_and_twelve_can_be_undone() {
    const MOST: usize = 12;
    let large = Code::new(MOST, MOST).expect("a shape");
    for (k, m) in (1..=MOST).flat_map(|k| (1..=MOST).map(move |m| (k, m))) {
        let part = Matrix::from_fn(m, k, |row, column| large.matrix().get(row, column));
        assert!(*Code::new(k, m).expect("a shape").matrix() == part, "{k}+{m}");
    }
    let mut tried = 0;
    for size in 1..=MOST {
        subsets(MOST, size, &mut |rows| {
            subsets(MOST, size, &mut |columns| {
                let part = Matrix::from_fn(size, size, |i, j| large.matrix().get(rows[i], columns[j]));
                assert!(part.inverted().is_some(), "parity {rows:?} for data {columns:?}");
                tried += 1;
            });
        });
    }
    // Of 24 members 12, but for the set without any lost data.
    assert_eq!(tried, 2_704_156 - 1);
}

#[test]
fn the_largest_codes_recover_too() {
    let mut random = Random(9);
    for (k, m) in [(254, 1), (1, 254), (200, 55), (32, 2), (127, 128)] {
        let code = Code::new(k, m).expect("a shape");
        let members = members(&code, &mut random, 100);
        lose(&code, &members, &(0..m).collect::<Vec<_>>());
        lose(&code, &members, &(k..k + m).collect::<Vec<_>>());
    }
}

#[test]
fn contributions_add_up_to_parity_in_any_order() {
    let mut random = Random(11);
    let code = Code::new(5, 3).expect("a shape");
    let members = members(&code, &mut random, 333);
    let mut parity = vec![vec![0; 333]; 3];
    for column in [3, 0, 4, 2, 1] {
        let mut slices: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
        code.add(Kernel::best(), column, &members[column], &mut slices);
    }
    assert!(parity == members[5..]);
}

#[test]
fn an_update_gives_the_parity_of_the_new_data() {
    let mut random = Random(13);
    for (k, m) in [(1, 1), (4, 2), (8, 4), (3, 7)] {
        let code = Code::new(k, m).expect("a shape");
        let members = members(&code, &mut random, 500);
        let (mut data, mut parity) = (members[..k].to_vec(), members[k..].to_vec());
        for (from, length) in [(0, 500), (17, 130), (499, 1)] {
            let column = random.below(k);
            let new = random.bytes(length);
            let mut slices: Vec<&mut [u8]> =
                parity.iter_mut().map(|slice| &mut slice[from..from + length]).collect();
            code.update(Kernel::best(), column, &data[column][from..from + length], &new, &mut slices);
            data[column][from..from + length].copy_from_slice(&new);
        }
        let mut expected = vec![vec![0; 500]; m];
        let slices: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        code.encode(
            Kernel::scalar(),
            &slices,
            &mut expected.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>(),
        );
        assert!(parity == expected, "{k}+{m}");
    }
}

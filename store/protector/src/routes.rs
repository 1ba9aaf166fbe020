//! Which way contributions take: for each shape a tree to each keeper, for each row of its parity.
//!
//! Members are counted backwards from the keeper: the one at distance d is d places to its left, so its right neighbours lead there. In the
//! stripe of row r those at distance r + 1 to r + K have the data places K - 1 to 0 (see `store::protect::Group::place`); the r nearest
//! ones keep the rows before it, and those beyond r + K the rows behind it.

use store::protect::Group;

use crate::shape::Shape;

/// Ways within one group.
#[derive(Clone, Debug)]
pub(crate) struct Routes {
    shape: Shape,
    members: usize,
    data: usize,
    me: usize,
}

impl Routes {
    pub(crate) fn new(shape: Shape, group: &Group, me: usize) -> Routes {
        Routes { shape, members: group.members(), data: group.code().data(), me }
    }

    pub(crate) fn me(&self) -> usize {
        self.me
    }

    pub(crate) fn members(&self) -> usize {
        self.members
    }

    /// How far to its left a member is.
    pub(crate) fn distance(&self, keeper: usize, member: usize) -> usize {
        (self.members + keeper - member) % self.members
    }

    fn at(&self, keeper: usize, distance: usize) -> usize {
        (self.members + keeper - distance) % self.members
    }

    /// Whether a member has data in the stripe of that row.
    pub(crate) fn contributes(&self, keeper: usize, row: usize, member: usize) -> bool {
        (row + 1..=row + self.data).contains(&self.distance(keeper, member))
    }

    /// The next hop of a member for that row; `None`: it is not on the way, or at its end.
    pub(crate) fn next(&self, keeper: usize, row: usize, member: usize) -> Option<usize> {
        let distance = self.distance(keeper, member);
        if distance == 0 || distance > row + self.data {
            return None;
        }
        // From the keeper's side: the nearest one with data is 0.
        let place = distance.checked_sub(row + 1);
        match (self.shape, place) {
            (Shape::Ring, _) => Some(self.at(keeper, distance - 1)),
            (_, None) => None,
            (Shape::Broadcast, _) | (_, Some(0)) => Some(keeper),
            (Shape::Pipeline, _) => Some(self.at(keeper, distance - 1)),
            (Shape::FanIn, Some(place)) => Some(self.at(keeper, (place - 1) / 2 + row + 1)),
        }
    }

    /// The previous hop of a member for that row.
    fn previous(&self, keeper: usize, row: usize, to: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.members).filter(move |member| self.next(keeper, row, *member) == Some(to))
    }

    /// The members that send to this one for that row, if only members contribute for which `is_busy` is true.
    pub(crate) fn senders(&self, keeper: usize, row: usize, is_busy: &impl Fn(usize) -> bool) -> Vec<usize> {
        self.previous(keeper, row, self.me)
            .filter(|member| self.sends(keeper, row, *member, is_busy))
            .collect()
    }

    /// Whether something of its own, or of those before it, passes a member.
    fn sends(&self, keeper: usize, row: usize, member: usize, is_busy: &impl Fn(usize) -> bool) -> bool {
        self.contributes(keeper, row, member) && is_busy(member)
            || self.previous(keeper, row, member).any(|before| self.sends(keeper, row, before, is_busy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_contribution_reaches_its_keeper_once_by_every_shape() {
        for (members, losses) in [(2, 1), (3, 1), (4, 1), (6, 2), (9, 4), (34, 2)] {
            let group = Group::new((0..members).collect(), losses).expect("a shape");
            for shape in Shape::ALL {
                let routes = Routes::new(shape, &group, 0);
                let mut hops = 0;
                for keeper in 0..group.members() {
                    for row in 0..losses {
                        let stripe = (group.members() + group.code().data() + row - keeper) % group.members();
                        for member in 0..group.members() {
                            let place = group.place(member, 0, stripe, 0);
                            let has_data = matches!(place, store::protect::StripePage::Data { .. });
                            assert_eq!(routes.contributes(keeper, row, member), has_data);
                            hops += usize::from(routes.next(keeper, row, member).is_some());
                            let mut at = member;
                            let mut left = group.members();
                            while let Some(next) = routes.next(keeper, row, at) {
                                (at, left) =
                                    (next, left.checked_sub(1).expect("no way goes around for ever"));
                            }
                            assert_eq!(
                                at == keeper,
                                has_data || member == keeper || routes.next(keeper, row, member).is_some()
                            );
                        }
                    }
                }
                // As many units travel by each shape, but for those that a ring passes through keepers of other rows.
                let (members, data) = (group.members(), group.code().data());
                let through = if shape == Shape::Ring { losses * (losses - 1) / 2 } else { 0 };
                assert_eq!(hops, members * (losses * data + through), "{shape} {members} {losses}");
            }
        }
    }

    #[test]
    fn the_shapes_are_what_their_names_say() {
        let group = Group::new((0..6).collect(), 2).expect("a shape");
        let way = |shape, keeper, row, from| {
            let routes = Routes::new(shape, &group, 0);
            let mut way = vec![from];
            while let Some(next) = routes.next(keeper, row, way[way.len() - 1]) {
                way.push(next);
            }
            way
        };
        // Row 1 of keeper 5: members 0 to 3 have data, member 4 keeps row 0.
        assert_eq!(way(Shape::Ring, 5, 1, 0), [0, 1, 2, 3, 4, 5]);
        assert_eq!(way(Shape::Pipeline, 5, 1, 0), [0, 1, 2, 3, 5]);
        assert_eq!(way(Shape::Broadcast, 5, 1, 0), [0, 5]);
        assert_eq!(way(Shape::FanIn, 5, 1, 0), [0, 2, 3, 5]);
        assert_eq!(way(Shape::FanIn, 5, 1, 1), [1, 3, 5]);
    }
}

//! R24: the rails of a port, the ways to its peers over them, and which of them are trusted.

use core::num::NonZeroU32;

use crate::auth::Authenticator;
use crate::config::{RAIL_LOSSES_MAX, RAIL_RETRY, RAILS_MAX};
use crate::ids::{AddressId, LinkIndex, RailIndex, RawAddress};
use crate::link::{Link, Path};
use crate::message::Event;
use crate::port::{Port, nanos};
use crate::sabotage::Rule;
use crate::wire::HEAD_BYTES_MAX;

/// The port's state of a rail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rail {
    pub(crate) address: RawAddress,
    pub(crate) frame_bytes_max: usize,
    /// See [`Port::add_rail_within_host`].
    pub(crate) within_host: bool,
    pub(crate) alive: bool,
    /// Lost frames since the last one that arrived.
    pub(crate) losses: u16,
    /// Passed over until then, port time; 0 if it is trusted.
    pub(crate) suspect_until: u64,
}

impl Rail {
    /// It works, as far as anybody knows.
    pub(crate) fn is_trusted(&self, now: u64) -> bool {
        self.alive && self.suspect_until <= now
    }

    /// See [`Port::retire_rail`].
    fn is_retired(&self) -> bool {
        !self.alive && self.address == RawAddress::NONE
    }
}

impl Port {
    /// The authenticator of the frames of one rail: none where only this user's processes can write (R21).
    #[must_use]
    pub fn authenticator_of(&self, rail: RailIndex) -> Option<&Authenticator> {
        let within_host = self.rails.get(usize::from(rail.0)).is_some_and(|rail| rail.within_host);
        self.auth.as_ref().filter(|_| !within_host)
    }

    /// Adds a rail. Its index is that of the driver in the shell.
    ///
    /// # Panics
    /// If there are [`RAILS_MAX`] already, or frames are too short to carry anything: bugs of the caller.
    pub fn add_rail(&mut self, address: RawAddress, frame_bytes_max: usize) -> RailIndex {
        self.add(address, frame_bytes_max, false)
    }

    /// As [`Port::add_rail`], of a rail that ends at this host, and into which only processes of this user can write: its frames carry no tag
    /// (R21), and a link that has it uses no other (R24).
    ///
    /// # Panics
    /// As [`Port::add_rail`].
    pub fn add_rail_within_host(&mut self, address: RawAddress, frame_bytes_max: usize) -> RailIndex {
        self.add(address, frame_bytes_max, true)
    }

    fn add(&mut self, address: RawAddress, frame_bytes_max: usize, within_host: bool) -> RailIndex {
        assert!(self.rails.len() < RAILS_MAX, "a port has at most {RAILS_MAX} rails");
        assert!(frame_bytes_max > HEAD_BYTES_MAX, "frames of {frame_bytes_max} bytes hold no payload");
        let rail = Rail { address, frame_bytes_max, within_host, alive: true, losses: 0, suspect_until: 0 };
        self.rails.push(rail);
        RailIndex(u8::try_from(self.rails.len() - 1).unwrap_or(u8::MAX))
    }

    /// R29: adds a rail, at the place of one that was retired if there is one. `None`: the port has [`RAILS_MAX`] already.
    ///
    /// # Panics
    /// As [`Port::add_rail`], if frames are too short.
    pub fn add_further_rail(&mut self, address: RawAddress, frame_bytes_max: usize) -> Option<RailIndex> {
        let Some(place) = self.rails.iter().position(Rail::is_retired) else {
            return (self.rails.len() < RAILS_MAX).then(|| self.add_rail(address, frame_bytes_max));
        };
        let rail = RailIndex(u8::try_from(place).unwrap_or(u8::MAX));
        self.rails[place].address = address;
        self.change_rail(rail, frame_bytes_max);
        Some(rail)
    }

    /// R29: no frame goes over this rail any more, and its address is not sent to peers. Frames sent over it count as
    /// lost when they are missed (R19); frames that no other rail takes ([`Port::longest_on_its_way`]) could never
    /// arrive.
    pub fn retire_rail(&mut self, rail: RailIndex) {
        self.set_rail_alive(rail, false);
        let own = usize::from(rail.0);
        let Some(entry) = self.rails.get_mut(own) else { return };
        entry.address = RawAddress::NONE;
        for link in &mut self.links {
            link.paths[own] = None;
        }
        self.make_all_ready();
    }

    /// Whether a rail was retired, and no other one has taken its place.
    #[must_use]
    pub fn is_retired(&self, rail: RailIndex) -> bool {
        self.rails.get(usize::from(rail.0)).is_some_and(Rail::is_retired)
    }

    /// Links may have something for other rails now.
    fn make_all_ready(&mut self) {
        for i in 0..self.links.len() {
            self.make_ready(LinkIndex(u32::try_from(i).unwrap_or(u32::MAX)));
        }
    }

    /// Where a rail is, alive or dead; of one that was retired, nowhere.
    #[must_use]
    pub fn rail_address(&self, rail: RailIndex) -> Option<RawAddress> {
        self.rails.get(usize::from(rail.0)).map(|rail| rail.address)
    }

    /// Whether a rail ends at this host: see [`Port::add_rail_within_host`].
    #[must_use]
    pub fn is_within_host(&self, rail: RailIndex) -> bool {
        self.rails.get(usize::from(rail.0)).is_some_and(|rail| rail.within_host)
    }

    /// Takes a rail out (its driver is dead), or back in.
    pub fn set_rail_alive(&mut self, rail: RailIndex, alive: bool) {
        if let Some(rail) = self.rails.get_mut(usize::from(rail.0)) {
            rail.alive = alive;
            rail.losses = 0;
            rail.suspect_until = 0;
        }
    }

    /// Another NIC has taken the rail's place at its address: frames sent over the old one may be lost, and
    /// all paths have to be set anew.
    pub fn change_rail(&mut self, rail: RailIndex, frame_bytes_max: usize) {
        assert!(frame_bytes_max > HEAD_BYTES_MAX, "frames of {frame_bytes_max} bytes hold no payload");
        if let Some(entry) = self.rails.get_mut(usize::from(rail.0)) {
            entry.frame_bytes_max = frame_bytes_max;
        }
        self.set_rail_alive(rail, true);
    }

    /// Bytes of the longest frame that may have to be sent again and that only `rail` takes; 0 if there is none. A number stands for certain bytes,
    /// so such a frame keeps its length.
    #[must_use]
    pub fn longest_on_its_way(&self, rail: RailIndex) -> usize {
        if self.sabotage.has(Rule::LongestFrame) {
            return 0;
        }
        let own = usize::from(rail.0);
        let longest_of = |link: &Link| {
            let queues = link.queues.as_ref().filter(|_| link.paths.get(own).is_some_and(Option::is_some))?;
            let others = self.rails.iter().zip(&link.paths).enumerate();
            let others = others.filter(|(i, (rail, _))| *i != own && rail.alive);
            let takes = |(rail, path): (&Rail, &Option<Path>)| {
                path.map(|path| rail.frame_bytes_max.min(path.frame_bytes_max.get() as usize))
            };
            let other = others.filter_map(|(_, way)| takes(way)).max().unwrap_or(0);
            let frames = queues.frames.iter().zip(&queues.sent);
            frames.map(|(kept, sent)| link.bytes_again(kept, sent)).filter(|bytes| *bytes > other).max()
        };
        // A link whose acknowledgement was put off has nothing on its way.
        let settled = self.deferred_ack.as_ref().map(|deferred_ack| deferred_ack.link.0 as usize);
        let links = self.links.iter().enumerate().filter(|(i, _)| Some(*i) != settled);
        links.filter_map(|(_, link)| longest_of(link)).max().unwrap_or(0)
    }

    /// Sets the address of the peer of `link` on `rail`, with frames as long as the rail takes.
    pub fn set_path(&mut self, link: LinkIndex, rail: RailIndex, address: AddressId) {
        let longest = self.rails.get(usize::from(rail.0)).map_or(0, |rail| rail.frame_bytes_max);
        self.set_path_limited(link, rail, address, longest);
    }

    /// Sets the address of the peer of `link` on `rail`, and how long frames on that path may be.
    pub fn set_path_limited(
        &mut self,
        link: LinkIndex,
        rail: RailIndex,
        address: AddressId,
        frame_bytes_max: usize,
    ) {
        let bytes = u32::try_from(frame_bytes_max).unwrap_or(u32::MAX);
        let Some(frame_bytes_max) = NonZeroU32::new(bytes) else { return };
        if let Some(entry) = self.links.get_mut(link.0 as usize)
            && let Some(path) = entry.paths.get_mut(usize::from(rail.0))
        {
            *path = Some(Path { address, frame_bytes_max });
            self.make_ready(link);
        }
    }

    /// The paths to this address over `rail` take shorter frames from now on.
    pub fn shrink_path(&mut self, rail: RailIndex, address: AddressId, frame_bytes_max: usize) {
        let bytes = u32::try_from(frame_bytes_max).unwrap_or(u32::MAX);
        let Some(frame_bytes_max) = NonZeroU32::new(bytes) else { return };
        for link in &mut self.links {
            if let Some(Some(path)) = link.paths.get_mut(usize::from(rail.0))
                && path.address == address
            {
                path.frame_bytes_max = path.frame_bytes_max.min(frame_bytes_max);
            }
        }
    }

    /// Nothing arrives at this address over `rail` any more: links that have another way do without this one (R24).
    pub fn lose_path(&mut self, rail: RailIndex, address: AddressId) {
        let rail = usize::from(rail.0);
        for i in 0..self.links.len() {
            let paths = &mut self.links[i].paths;
            let names = |path: &Option<Path>| path.is_some_and(|path| path.address == address);
            if paths.get(rail).is_some_and(names) && paths.iter().flatten().count() > 1 {
                paths[rail] = None;
                self.make_ready(LinkIndex(u32::try_from(i).unwrap_or(u32::MAX)));
            }
        }
    }

    /// Forgets where the peer of `link` is reached over `rail`.
    pub fn clear_path(&mut self, link: LinkIndex, rail: RailIndex) {
        if let Some(path) =
            self.links.get_mut(link.0 as usize).and_then(|link| link.paths.get_mut(usize::from(rail.0)))
        {
            *path = None;
        }
    }

    pub(crate) fn rail_is_usable(&mut self, rail: RailIndex, now: u64) -> bool {
        let others =
            self.rails.iter().enumerate().any(|(i, other)| i != usize::from(rail.0) && other.is_trusted(now));
        match self.rails.get(usize::from(rail.0)) {
            Some(rail) => rail.alive && (rail.suspect_until <= now || !others),
            None => false,
        }
    }

    pub(crate) fn has_way_within_host(&self, index: LinkIndex, now: u64) -> bool {
        let paths = &self.links[index.0 as usize].paths;
        self.rails
            .iter()
            .zip(paths)
            .any(|(rail, path)| rail.within_host && path.is_some() && rail.is_trusted(now))
    }

    /// Whether a frame of this length can go over a rail other than `rail`.
    pub(crate) fn has_other_way(
        &self,
        index: LinkIndex,
        rail: RailIndex,
        frame_bytes: usize,
        now: u64,
    ) -> bool {
        let paths = &self.links[index.0 as usize].paths;
        let stays = self.has_way_within_host(index, now);
        self.rails.iter().zip(paths).enumerate().any(|(i, (other, path))| {
            i != usize::from(rail.0)
                && other.is_trusted(now)
                && (other.within_host || !stays)
                && path.is_some_and(|path| path.frame_bytes_max.get() as usize >= frame_bytes)
        })
    }

    /// R24: passes over rails that lose everything, while there is another.
    pub(crate) fn suspect_rails(&mut self, now: u64) {
        for i in 0..self.rails.len() {
            let rail = &self.rails[i];
            if !rail.alive || rail.losses < RAIL_LOSSES_MAX || rail.suspect_until > now {
                continue;
            }
            let others = self.rails.iter().enumerate().any(|(j, other)| j != i && other.is_trusted(now));
            if !others {
                continue;
            }
            let rail = &mut self.rails[i];
            let news = rail.suspect_until == 0;
            rail.suspect_until = now + nanos(RAIL_RETRY);
            // One trial after the pause decides.
            rail.losses = RAIL_LOSSES_MAX - 1;
            if news {
                let rail = RailIndex(u8::try_from(i).unwrap_or(u8::MAX));
                self.events.push_back(Event::RailSuspect { rail });
            }
        }
    }

    /// A frame sent over this rail has arrived.
    pub(crate) fn trust_rail(&mut self, rail: u8) {
        if let Some(entry) = self.rails.get_mut(usize::from(rail)) {
            entry.losses = 0;
            if entry.suspect_until != 0 {
                entry.suspect_until = 0;
                self.events.push_back(Event::RailBack { rail: RailIndex(rail) });
            }
        }
    }
}

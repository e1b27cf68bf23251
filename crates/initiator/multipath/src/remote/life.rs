//! Paths: how they come up, what they are found to be, how they are lost, fenced and tried again.

use std::sync::Arc;
use std::time::Duration;

use buf::Cx;
use stream::Tag;
use volume::{Access, Geometry, Op, Time};

use super::path_slot::State;
use super::terms::{Stranger, Trouble, is_same_serial};
use super::{At, Identity, PATH_LOST, RemoteVolume, Stage};
use crate::path::{Event, Path, Portrait, Why};

impl<P: Path> RemoteVolume<P> {
    /// Looks at the paths that were touched, and does what follows. True if there may be more.
    pub(super) fn look(&mut self, cx: &mut Cx<'_>) -> bool {
        let mut more = false;
        let mut touched = std::mem::take(&mut self.touched);
        while touched != 0 {
            let at = touched.trailing_zeros() as usize;
            touched &= touched - 1;
            if self.ways[at].path.turn(cx) {
                more = true;
                self.touched |= 1 << at;
            }
            self.ready |= 1 << at;
            while let Some(event) = self.ways[at].path.poll_event() {
                self.happened(cx, at, event);
            }
        }
        if self.uneasy {
            self.settle(cx);
            more |= self.touched != 0;
        }
        more
    }

    #[inline]
    fn happened(&mut self, cx: &mut Cx<'_>, at: usize, event: Event) {
        match event {
            Event::Done { id, how, payload } => self.ended(cx, at, id, how, payload),
            Event::Up(portrait) => self.came_up(cx, at, portrait),
            Event::Changed(portrait) => self.changed(cx, at, portrait),
            Event::ReservationsChanged => self.news.changed = true,
            Event::Fenced => self.fenced(cx, at),
            Event::Claimed { id, how } => self.claim_ended(cx, at, id, how),
            Event::Down(why) => self.went_down(cx, at, why),
        }
    }

    /// What is not plain: queues, fences, cancels.
    fn settle(&mut self, cx: &mut Cx<'_>) {
        for at in 0..self.ways.len() {
            let way = &mut self.ways[at];
            if way.wants_fence && !way.fencing {
                (way.wants_fence, way.fencing) = (false, true);
                way.generation = way.generation.wrapping_add(1);
                way.counts.fences += 1;
                way.news = true;
                way.path.fence(cx);
                self.touch(at);
            }
        }
        self.run_cancels(cx);
        self.release_held();
        self.drain_queue(cx);
        self.send_flushes(cx);
        self.send_joins(cx);
        self.send_claims(cx);
        if self.dark_since.is_some() && self.is_hopeless(cx.now) {
            self.fail_waiting(PATH_LOST);
            self.fail_claims(cx.now);
        }
        let calm = self.queue.is_empty()
            && self.held.is_empty()
            && self.later.is_empty()
            && self.flushes.is_empty()
            && self.claims.is_empty()
            && self.stage == Stage::Open
            && self.ways.iter().all(|way| way.state == State::Up && way.is_calm());
        self.uneasy = !(calm && self.ghosts.is_empty() && self.dark_since.is_none());
        self.set_wake();
    }

    pub(super) fn connect(&mut self, cx: &mut Cx<'_>, at: usize) {
        let way = &mut self.ways[at];
        way.state = State::Connecting;
        way.news = true;
        way.path.connect(cx);
        self.uneasy = true;
        self.touch(at);
    }

    fn came_up(&mut self, cx: &mut Cx<'_>, at: usize, portrait: Arc<Portrait>) {
        self.uneasy = true;
        let way = &mut self.ways[at];
        way.news = true;
        if way.state != State::Connecting {
            // It was told to disconnect, and did not know it yet.
            return;
        }
        way.state = State::Up;
        way.counts.connects += 1;
        if self.stage == Stage::Failed {
            return self.expel(cx, at, Trouble::Down(Why::Ended));
        }
        if let Err(stranger) = self.accept(at, &portrait) {
            self.ways[at].portrait = Some(portrait);
            return self.expel(cx, at, Trouble::Stranger(stranger));
        }
        let way = &mut self.ways[at];
        way.known = true;
        way.came_up(cx.now);
        self.news.landing |= way.lands_longer();
        let way = &mut self.ways[at];
        self.remarks = true;
        (way.window, way.depth) = (portrait.depth.max(1), portrait.depth.max(1));
        way.portrait = None;
        self.adopt(cx.now, at, portrait);
        self.begin_join(cx.now, at);
        self.choose_best(cx.now);
        self.look_whether_open(cx);
    }

    /// A volume is open when a path has told what it is like. One that is reached by paths that do not serve is
    /// there, and nothing is known of it.
    fn look_whether_open(&mut self, cx: &mut Cx<'_>) {
        if self.stage == Stage::Opening && self.portrait.is_some() {
            self.stage = Stage::Open;
            self.news.open = true;
        }
        self.look_whether_over(cx);
    }

    fn changed(&mut self, cx: &mut Cx<'_>, at: usize, portrait: Arc<Portrait>) {
        self.uneasy = true;
        self.ways[at].news = true;
        if self.ways[at].state != State::Up || self.ways[at].expelled.is_some() {
            return;
        }
        if let Err(stranger) = self.accept(at, &portrait) {
            return self.expel(cx, at, Trouble::Stranger(stranger));
        }
        let lost = portrait.access == Access::PersistentLoss;
        self.ways[at].window = portrait.depth.max(1);
        let served = self.ways[at].serves();
        self.adopt(cx.now, at, portrait);
        if self.ways[at].serves() != served {
            self.turn_join(cx.now, at);
        }
        self.choose_best(cx.now);
        self.look_whether_open(cx);
        if !self.ways[at].serves() {
            self.drop_legs(cx, at);
        }
        if lost && self.ways[at].in_work == 0 {
            self.expel(cx, at, Trouble::Down(Why::Refused("the target lost this path for good".into())));
        }
    }

    /// Whether what a path found is our volume.
    fn accept(&mut self, at: usize, portrait: &Portrait) -> Result<(), Stranger> {
        if let Some(expected) = &self.terms.expected {
            expected.accept(portrait)?;
        }
        match (&mut self.identity, portrait.uuid) {
            (None, Some(uuid)) => self.identity = Some(Identity::Uuid(uuid)),
            (None, None) => self.identity = Some(Identity::Alone(at as u8, portrait.serial.clone())),
            (Some(Identity::Uuid(volume)), Some(path)) if *volume != path => {
                return Err(Stranger::OtherUuid { volume: *volume, path });
            }
            (Some(Identity::Uuid(_)), Some(_)) => {}
            (Some(Identity::Uuid(_)), None) => return Err(Stranger::NoUuid),
            (Some(Identity::Alone(only, serial)), None) if usize::from(*only) == at => {
                if !is_same_serial(serial, portrait) {
                    return Err(Stranger::OtherSerial);
                }
                if serial.len() < portrait.serial.len() {
                    *serial = portrait.serial.clone();
                }
            }
            (Some(Identity::Alone(..)), _) => return Err(Stranger::NoUuid),
        }
        let logical = |portrait: &Portrait| portrait.geometry.map(|geometry| geometry.logical);
        let ours = self.portrait.as_deref().and_then(logical);
        match ours.zip(logical(portrait)) {
            Some((volume, path)) if volume != path => Err(Stranger::OtherBlocks { volume, path }),
            Some(_) | None => Ok(()),
        }
    }

    /// Takes over what a path says of the volume, where it says something new: what it had said before may be
    /// older than what another path has said since. The longest operation is what all paths carry.
    fn adopt(&mut self, now: Time, at: usize, portrait: Arc<Portrait>) {
        let way = &mut self.ways[at];
        let before = way.portrait.replace(portrait.clone());
        let Some(said) = portrait.geometry else {
            // Its state is all that it tells.
            if self.portrait.is_none() && way.untold.is_none() {
                way.untold = Some(now);
                way.last = Some((now, Trouble::Untold(portrait.access)));
            }
            return;
        };
        (way.most, way.untold) = (u64::from(said.max_io), None);
        let known =
            self.ways.iter().filter(|way| way.known).filter_map(|way| way.portrait.as_ref()?.geometry);
        let carried = known.map(|geometry| geometry.max_io).min().unwrap_or(said.max_io);
        let max_io = self.terms.max_io.unwrap_or(carried);
        let mut ours = portrait;
        if let (Some(volume), Some(before)) = (&self.portrait, &before) {
            let is_same = |one: &Portrait, other: &Portrait| one.geometry == other.geometry;
            let geometry = if is_same(before, &ours) { volume.geometry } else { ours.geometry };
            let is_protected =
                if before.read_only == ours.read_only { volume.read_only } else { ours.read_only };
            let ours = Arc::make_mut(&mut ours);
            (ours.geometry, ours.read_only) = (geometry, is_protected);
        }
        if ours.geometry.is_some_and(|geometry| geometry.max_io != max_io) {
            let ours = Arc::make_mut(&mut ours);
            ours.geometry = ours.geometry.map(|geometry| Geometry { max_io, ..geometry });
        }
        let differs = self.portrait.as_ref().is_none_or(|before| before.geometry != ours.geometry);
        let protection = self.portrait.as_ref().is_some_and(|before| before.read_only != ours.read_only);
        self.news.geometry |= differs || protection;
        self.news.changed |= self.portrait.is_some() && (differs || protection);
        self.portrait = Some(ours);
    }

    /// Ends a path that is up and not to be used.
    pub(super) fn expel(&mut self, cx: &mut Cx<'_>, at: usize, trouble: Trouble) {
        let way = &mut self.ways[at];
        way.expelled = Some(trouble);
        way.path.disconnect(cx, Duration::ZERO);
        self.touch(at);
        self.choose_best(cx.now);
    }

    fn went_down(&mut self, cx: &mut Cx<'_>, at: usize, why: Why) {
        self.uneasy = true;
        let now = cx.now;
        let way = &mut self.ways[at];
        debug_assert_eq!(way.in_work, 0, "all that was in work has ended before");
        way.news = true;
        way.tried = true;
        way.depth = 0;
        (way.joining, way.untold) = (None, None);
        if way.state == State::Up {
            way.down_since = now;
            way.counts.losses += u64::from(way.expelled.is_none());
        }
        let expelled = way.expelled.take();
        // What nothing but somebody's doing can change is tried again only if it has worked before.
        let refused = matches!(why, Why::Refused(_) | Why::Absent(_));
        let lost = way.portrait.as_ref().is_some_and(|portrait| portrait.access == Access::PersistentLoss);
        let firm = expelled.is_some() || refused || matches!(why, Why::Unproven(_)) || lost;
        // A target that is just starting may not know yet what it is to serve.
        let starting = refused && now < self.opened_at + self.terms.open_timeout;
        // What is expected was found before, so it has worked for others.
        let worked = way.known || self.terms.expected.is_some();
        let closing = matches!(way.state, State::Closing | State::Closed);
        let trouble = expelled.unwrap_or(Trouble::Down(why));
        if !closing && matches!(self.stage, Stage::Opening | Stage::Open) {
            way.say_down(now, way.state == State::Up, &trouble);
            self.remarks = true;
        }
        way.last = Some((now, trouble));
        way.state = match self.stage {
            _ if closing => State::Closed,
            Stage::Failed | Stage::Closing | Stage::Closed => State::Closed,
            Stage::Opening | Stage::Open if firm && !worked && !starting => State::GivenUp,
            Stage::Opening | Stage::Open => State::Waiting(way.next_attempt(cx, &self.terms, firm)),
        };
        self.drop_legs(cx, at);
        self.drop_claims(at);
        self.choose_best(now);
        self.look_whether_over(cx);
    }

    /// What follows from the end of a path for the volume as a whole.
    fn look_whether_over(&mut self, cx: &mut Cx<'_>) {
        let over = |state| matches!(state, State::GivenUp | State::Closed);
        match self.stage {
            Stage::Opening => {
                let hopeless = self.ways.iter().all(|way| over(way.state));
                let tried = self.ways.iter().all(|way| way.is_tried(cx.now));
                if hopeless || tried && cx.now >= self.opened_at + self.terms.open_timeout {
                    self.stage = Stage::Failed;
                    self.news.failed = true;
                    self.fail_waiting(PATH_LOST);
                    self.fail_claims(cx.now);
                    self.shut_ways(cx, Duration::ZERO);
                }
            }
            Stage::Closing if self.ways.iter().all(|way| way.state == State::Closed) => {
                self.stage = Stage::Closed;
                self.news.closed = true;
            }
            Stage::Open | Stage::Failed | Stage::Closing | Stage::Closed => {}
        }
    }

    /// Tells every path to disconnect.
    pub(super) fn shut_ways(&mut self, cx: &mut Cx<'_>, grace: Duration) {
        self.uneasy = true;
        for at in 0..self.ways.len() {
            let way = &mut self.ways[at];
            match way.state {
                State::Connecting | State::Up => {
                    way.state = State::Closing;
                    way.path.disconnect(cx, grace);
                    self.touch(at);
                }
                State::Waiting(_) | State::GivenUp => way.state = State::Closed,
                State::Closing | State::Closed => {}
            }
        }
        self.choose_best(cx.now);
        self.look_whether_over(cx);
    }

    /// What a path lost can land no more.
    fn fenced(&mut self, cx: &mut Cx<'_>, at: usize) {
        let way = &mut self.ways[at];
        if !std::mem::take(&mut way.fencing) {
            return;
        }
        self.uneasy = true;
        way.news = true;
        let generation = way.generation;
        // Asked for after the loss: a loss notes the count before.
        let covered = |way: u8, then: u32| usize::from(way) == at && then != generation;
        let mut freed: Vec<(u64, Tag)> = Vec::new();
        for (tag, task) in self.tasks.iter() {
            if let At::Doubt(way, then) = task.at
                && covered(way, then)
            {
                freed.push((task.number, tag));
            }
        }
        freed.sort_unstable_by_key(|(number, _)| *number);
        for (_, tag) in freed {
            let Some(task) = self.tasks.get_mut(tag) else { continue };
            let payload = std::mem::take(&mut task.payload);
            let once = matches!(task.op, Op::CompareAndWrite(_));
            task.at = At::Queued;
            #[cfg(test)]
            if self.has(super::Bug::Lose) {
                continue;
            }
            #[cfg(test)]
            let once = once && !self.has(super::Bug::RepeatSwap);
            if once {
                // Done again, it would find its own data and say that they differ.
                self.finish(tag, Err(PATH_LOST), payload);
            } else {
                self.retry(cx, tag, payload, Duration::ZERO);
            }
        }
        let mut at = 0;
        while let Some(ghost) = self.ghosts.get(at) {
            if covered(ghost.way, ghost.generation) {
                let ghost = self.ghosts.swap_remove(at);
                self.order.leave(&ghost.op);
                self.release = true;
            } else {
                at += 1;
            }
        }
        self.choose_best(cx.now);
    }

    /// Whether paths can be given up, connected, or the volume with them.
    pub(super) fn look_at_ways(&mut self, cx: &mut Cx<'_>) {
        if !matches!(self.stage, Stage::Opening | Stage::Open) {
            return;
        }
        for at in 0..self.ways.len() {
            let way = &mut self.ways[at];
            let State::Waiting(next) = way.state else { continue };
            if cx.now >= way.down_since + self.terms.loss_timeout {
                way.state = State::GivenUp;
                way.news = true;
                self.uneasy = true;
            } else if cx.now >= next {
                self.connect(cx, at);
            }
        }
        self.look_whether_over(cx);
    }

    /// When a path that waits has to be looked at.
    pub(super) fn next_attempt(&self) -> Option<Time> {
        let loss = self.terms.loss_timeout;
        let next = self.ways.iter().filter_map(|way| match way.state {
            State::Waiting(at) => Some(at.min(way.down_since + loss)),
            _ => None,
        });
        next.min()
    }
}

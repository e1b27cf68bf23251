//! One shard's loop: the same for io_uring and for epoll.

use buf::{Cx, Entropy, Pool, Time};
use endpoint::{Endpoint, LinkId, pump};
use stream::Tag;

use crate::clock;
use crate::event::Event;
use crate::mail::Letter;
use crate::socket;
use crate::spin::Spin;
use crate::world::{Wait, World};

/// Looks at memory between two looks at the clock.
const LOOKS: u32 = 16;

pub(crate) struct EventLoop<E: Endpoint, W> {
    pub(crate) end: E,
    pub(crate) pool: Pool,
    pub(crate) entropy: Entropy,
    pub(crate) world: W,
    pub(crate) spin: Spin,
    /// When to end at the latest.
    pub(crate) stop: Option<Time>,
    /// It takes everything back, and nothing on.
    pub(crate) is_ending: bool,
}

pub(crate) fn link_of(tag: Tag) -> LinkId {
    LinkId(tag.to_bits())
}

pub(crate) fn tag_of(link: LinkId) -> Tag {
    Tag::from_bits(link.0)
}

impl<E: Endpoint, W: World<E::Message>> EventLoop<E, W> {
    /// Runs until it is told to stop.
    pub(crate) fn run(mut self) {
        loop {
            let more = self.turn();
            if self.stop.is_some_and(|deadline| self.world.links() == 0 || self.now() >= deadline) {
                break;
            }
            self.wait(more, self.stop);
        }
        self.end();
    }

    fn now(&mut self) -> Time {
        self.world.base().now
    }

    /// Hands over what has happened and starts what is wanted; true if there is more to do now.
    pub(crate) fn turn(&mut self) -> bool {
        let now = clock::now();
        let base = self.world.base();
        base.now = now;
        base.counters.turns.add(1);
        self.read_mail();
        self.deliver();
        let mut cx = Cx { now, pool: &self.pool, entropy: &mut self.entropy };
        if self.end.poll_timeout().is_some_and(|due| due <= now) {
            self.end.handle_timeout(&mut cx);
        }
        // A shard whose letters find no room says nothing new until they have.
        let more = self.world.base().flush_mail() && pump(&mut self.end, &mut cx, &mut self.world);
        let links = self.world.links() as u64;
        let base = self.world.base();
        base.counters.links.set(links);
        base.counters.pool_lent.set((base.pool.usage().lent - base.kept) as u64);
        more || !base.events.is_empty()
    }

    fn read_mail(&mut self) {
        if !self.world.base().bell.answer() {
            return;
        }
        while let Some(letter) = self.world.base().next_letter() {
            let base = self.world.base();
            match letter {
                Letter::Message(message) => {
                    base.counters.messages.add(1);
                    base.events.push_back(Event::Message(message));
                }
                // Nobody would take it away again.
                Letter::Link { fd, how } if self.is_ending => {
                    socket::reset_on_close(&fd);
                    base.refuse_link(how.into());
                }
                Letter::Link { fd, how } => self.world.install(fd, how.into()),
                Letter::Disk { id, file } => base.set_disk(id, file),
                Letter::Worked { slot, came, data } => base.finish_disk_call(slot, came, data),
                Letter::OpenListener { id, socket } => self.world.open_listener(id, socket),
                Letter::CloseListener { id } => self.world.close_listener(id),
                Letter::CloseListeners => self.world.close_listeners(),
                Letter::Stop { deadline } => {
                    self.world.close_listeners();
                    self.stop = Some(deadline);
                }
            }
        }
    }

    fn deliver(&mut self) {
        let now = self.world.base().now;
        let mut cx = Cx { now, pool: &self.pool, entropy: &mut self.entropy };
        let (end, cx) = (&mut self.end, &mut cx);
        while let Some(event) = self.world.base().events.pop_front() {
            match event {
                Event::Arrival(link, how) => end.handle_arrival(cx, link, how),
                Event::Message(message) => end.handle_message(cx, message),
                Event::Recv(link, op, came) => end.handle_recv(cx, link, op, came),
                Event::Written(link, how) => end.handle_written(cx, link, how),
                Event::Sent(link, op) => end.handle_sent(cx, link, op),
                Event::Disk(op, came) => end.handle_disk(cx, op, came),
                Event::Dialled(id, how) => end.handle_dialled(cx, id, how),
            }
        }
    }

    /// Waits for something to do, but no longer than `at_most`: first by looking at memory, if that has
    /// paid lately, then asleep.
    pub(crate) fn wait(&mut self, more: bool, at_most: Option<Time>) {
        if more {
            return self.world.gather(Wait::No);
        }
        let until = [self.end.poll_timeout(), self.world.base().timer(), at_most].into_iter().flatten().min();
        // Under load this brings the next work, and nothing below is reached.
        self.world.gather(Wait::No);
        if self.has_work() {
            return;
        }
        let start = self.now();
        let budget = self.spin.budget();
        if budget > 0 && self.poll(start, budget, until) {
            return;
        }
        let base = self.world.base();
        if !base.bell.doze() {
            return self.world.gather(Wait::No);
        }
        base.counters.sleeps.add(1);
        self.world.gather(Wait::Until(until));
        self.world.base().bell.wake();
        if self.has_work() {
            self.spin.slept(clock::now().since(start).as_nanos() as u64);
        }
    }

    pub(crate) fn has_work(&mut self) -> bool {
        let base = self.world.base();
        !base.events.is_empty() || base.bell.is_rung()
    }

    /// Polls; true if there is something to do.
    fn poll(&mut self, start: Time, budget: u64, until: Option<Time>) -> bool {
        let begun = clock::now();
        loop {
            for _ in 0..LOOKS {
                if self.world.peek() || self.world.base().bell.is_rung() {
                    self.world.gather(Wait::No);
                    if self.has_work() {
                        let now = clock::now();
                        self.spin.hit(now.since(start).as_nanos() as u64);
                        let counters = &self.world.base().counters;
                        counters.polls_useful.add(1);
                        counters.poll_ns.add(now.since(begun).as_nanos() as u64);
                        return true;
                    }
                }
                std::hint::spin_loop();
            }
            let now = clock::now();
            if until.is_some_and(|until| until <= now) {
                return true;
            }
            let spent = now.since(begun).as_nanos() as u64;
            if spent >= budget {
                self.spin.miss();
                let counters = &self.world.base().counters;
                counters.polls_idle.add(1);
                counters.poll_ns.add(spent);
                return false;
            }
        }
    }

    /// Takes everything back. The shard turns no more.
    pub(crate) fn end(&mut self) {
        self.is_ending = true;
        self.world.abort_all();
        loop {
            self.world.base().now = clock::now();
            self.read_mail();
            self.deliver();
            if self.world.out() == 0 && self.world.base().events.is_empty() {
                break;
            }
            let until = self.now() + std::time::Duration::from_millis(100);
            let base = self.world.base();
            if base.bell.doze() {
                self.world.gather(Wait::Until(Some(until)));
            }
            self.world.base().bell.wake();
        }
        let base = self.world.base();
        base.counters.links.set(0);
    }
}

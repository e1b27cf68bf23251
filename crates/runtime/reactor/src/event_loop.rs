//! One shard's loop: the same for io_uring and for epoll.

use buf::{Cx, Entropy, Pool, Time};
use endpoint::{Endpoint, LinkId, pump};
use stream::Tag;

use crate::busy_poll::BusyPollEstimate;
use crate::clock;
use crate::endpoint_event::EndpointEvent;
use crate::mailbox::ShardMail;
use crate::socket;
use crate::world::{WaitLimit, World};

/// Looks at memory between two looks at the clock.
const POLLS_PER_CLOCK_READ: u32 = 16;

pub(crate) struct EventLoop<E: Endpoint, W> {
    pub(crate) end: E,
    pub(crate) pool: Pool,
    pub(crate) entropy: Entropy,
    pub(crate) world: W,
    pub(crate) spin: BusyPollEstimate,
    /// When to end at the latest.
    pub(crate) stop: Option<Time>,
    /// It takes everything back, and nothing on.
    pub(crate) is_ending: bool,
}

pub(crate) fn link_from_tag(tag: Tag) -> LinkId {
    LinkId(tag.to_bits())
}

pub(crate) fn tag_from_link(link: LinkId) -> Tag {
    Tag::from_bits(link.0)
}

impl<E: Endpoint, W: World<E::Message>> EventLoop<E, W> {
    /// Runs until it is told to stop.
    pub(crate) fn run(mut self) {
        loop {
            let more = self.turn();
            if self.stop.is_some_and(|deadline| self.world.link_count() == 0 || self.now() >= deadline) {
                break;
            }
            self.wait(more, self.stop);
        }
        self.shut_down();
    }

    fn now(&mut self) -> Time {
        self.world.world_state().now
    }

    /// Hands over what has happened and starts what is wanted; true if there is more to do now.
    pub(crate) fn turn(&mut self) -> bool {
        let now = clock::now();
        let base = self.world.world_state();
        base.now = now;
        base.counters.turns.add(1);
        self.drain_mailbox();
        self.deliver_events();
        let mut cx = Cx { now, pool: &self.pool, entropy: &mut self.entropy };
        if self.end.poll_timeout().is_some_and(|due| due <= now) {
            self.end.handle_timeout(&mut cx);
        }
        // A shard whose messages find no room sends nothing new until they have.
        let more =
            self.world.world_state().flush_held_mail() && pump(&mut self.end, &mut cx, &mut self.world);
        let links = self.world.link_count() as u64;
        let base = self.world.world_state();
        base.counters.links.set(links);
        base.counters.pool_lent.set((base.pool.usage().lent - base.kept) as u64);
        more || !base.events.is_empty()
    }

    fn drain_mailbox(&mut self) {
        if !self.world.world_state().waker.take_notification() {
            return;
        }
        self.world.world_state().finish_library_calls();
        while let Some(mail) = self.world.world_state().next_mail() {
            let base = self.world.world_state();
            match mail {
                ShardMail::Message(message) => {
                    base.counters.messages.add(1);
                    base.events.push_back(EndpointEvent::Message(message));
                }
                // Nobody would take it away again.
                ShardMail::Link { fd, how } if self.is_ending => {
                    socket::reset_on_close(&fd);
                    base.refuse_link(how.into());
                }
                ShardMail::Link { fd, how } => self.world.install_link(fd, how.into()),
                ShardMail::Disk { id, file } => base.set_disk(id, file),
                ShardMail::DuplicateListeners { reply } => drop(reply.send(base.duplicate_listeners())),
                ShardMail::DuplicateLinks { links, reply } => {
                    // Who asked may have lost patience.
                    let _ = reply.send(self.world.duplicate_links(&links));
                }
                ShardMail::Worked { slot, came, data } => base.finish_disk_call(slot, came, data),
                ShardMail::OpenListener { id, socket } => self.world.open_listener(id, socket),
                ShardMail::ChangeListener { from, to, tcp } => base.change_listener(from, to, &tcp),
                ShardMail::CloseListener { id } => self.world.close_listener(id),
                ShardMail::CloseListeners => self.world.close_listeners(),
                ShardMail::Stop { deadline } => {
                    self.world.close_listeners();
                    self.stop = Some(deadline);
                }
            }
        }
    }

    fn deliver_events(&mut self) {
        let now = self.world.world_state().now;
        let mut cx = Cx { now, pool: &self.pool, entropy: &mut self.entropy };
        let (end, cx) = (&mut self.end, &mut cx);
        while let Some(event) = self.world.world_state().events.pop_front() {
            match event {
                EndpointEvent::Arrival(link, how) => end.handle_arrival(cx, link, how),
                EndpointEvent::Message(message) => end.handle_message(cx, message),
                EndpointEvent::Recv(link, op, came) => end.handle_recv(cx, link, op, came),
                EndpointEvent::Written(link, how) => end.handle_written(cx, link, how),
                EndpointEvent::Sent(link, op) => end.handle_send_released(cx, link, op),
                EndpointEvent::SendCut(link, op, written) => end.handle_send_cut(cx, link, op, written),
                EndpointEvent::Disk(op, came) => end.handle_disk(cx, op, came),
                EndpointEvent::Dialled(id, how) => end.handle_dialled(cx, id, how),
            }
        }
    }

    /// Waits for something to do, but no longer than `at_most`: first by looking at memory, if that has
    /// paid lately, then asleep.
    pub(crate) fn wait(&mut self, more: bool, at_most: Option<Time>) {
        if more {
            return self.world.collect_events(WaitLimit::No);
        }
        let until = [self.end.poll_timeout(), self.world.world_state().next_deadline(), at_most]
            .into_iter()
            .flatten()
            .min();
        // Under load this brings the next work, and nothing below is reached.
        self.world.collect_events(WaitLimit::No);
        if self.has_pending_events() {
            return;
        }
        let start = self.now();
        let budget = self.spin.budget();
        if budget > 0 && self.busy_poll(start, budget, until) {
            return;
        }
        let base = self.world.world_state();
        if !base.waker.prepare_sleep() {
            return self.world.collect_events(WaitLimit::No);
        }
        base.counters.sleeps.add(1);
        self.world.collect_events(WaitLimit::Until(until));
        self.world.world_state().waker.note_awake();
        if self.has_pending_events() {
            self.spin.note_slept(clock::now().since(start).as_nanos() as u64);
        }
    }

    pub(crate) fn has_pending_events(&mut self) -> bool {
        let base = self.world.world_state();
        !base.events.is_empty() || base.waker.is_notified()
    }

    /// Polls; true if there is something to do.
    fn busy_poll(&mut self, start: Time, budget: u64, until: Option<Time>) -> bool {
        let begun = clock::now();
        loop {
            for _ in 0..POLLS_PER_CLOCK_READ {
                if self.world.has_events() || self.world.world_state().waker.is_notified() {
                    self.world.collect_events(WaitLimit::No);
                    if self.has_pending_events() {
                        let now = clock::now();
                        self.spin.note_hit(now.since(start).as_nanos() as u64);
                        let counters = &self.world.world_state().counters;
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
                self.spin.note_miss();
                let counters = &self.world.world_state().counters;
                counters.polls_idle.add(1);
                counters.poll_ns.add(spent);
                return false;
            }
        }
    }

    /// Takes everything back. The shard turns no more.
    pub(crate) fn shut_down(&mut self) {
        self.is_ending = true;
        self.world.abort_all_links();
        loop {
            self.world.world_state().now = clock::now();
            self.drain_mailbox();
            self.deliver_events();
            if self.world.ops_in_flight() == 0 && self.world.world_state().events.is_empty() {
                break;
            }
            let until = self.now() + std::time::Duration::from_millis(100);
            let base = self.world.world_state();
            if base.waker.prepare_sleep() {
                self.world.collect_events(WaitLimit::Until(Some(until)));
            }
            self.world.world_state().waker.note_awake();
        }
        let base = self.world.world_state();
        base.counters.links.set(0);
    }
}

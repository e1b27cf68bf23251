//! The I/O queues of an association, and the operation of each of their commands.
//!
//! The transport may give the slot of a command to the next one before this module has seen the end of the
//! first. So a command uses its slot here, or the next free one.
//!
//! Invariant: nothing is allocated once a queue is open; a number of the controller is never an index.

use stream::Tag;

use super::queue_links::QueueId;

/// An I/O queue.
#[derive(Debug)]
pub(super) struct IoQueue {
    pub(super) who: QueueId,
    /// Commands that may be in work at once.
    window: usize,
    busy: usize,
    /// From the place of the command's tag on, which is ours: the command and its operation.
    operations: Box<[Option<(Tag, Tag)>]>,
}

impl IoQueue {
    pub(super) fn new(who: QueueId, window: usize) -> Self {
        IoQueue { who, window, busy: 0, operations: vec![None; window.max(1)].into() }
    }

    fn free_entries(&self) -> usize {
        self.window - self.busy
    }

    /// A command was started for an operation.
    pub(super) fn note_command_sent(&mut self, command: Tag, operation: Tag) {
        // There are no more commands than the window.
        let free = self.find_place(command, Option::is_none);
        if let Some(place) = free.and_then(|at| self.operations.get_mut(at)) {
            *place = Some((command, operation));
            self.busy += 1;
        }
    }

    /// The operation of a command that has ended.
    pub(super) fn take_operation(&mut self, command: Tag) -> Option<Tag> {
        let at = self.find_place(command, |place| matches!(place, Some((of, _)) if *of == command))?;
        let (_, operation) = self.operations.get_mut(at)?.take()?;
        self.busy -= 1;
        Some(operation)
    }

    /// The first of the places where a command may stand that is such; its own is the first, and mostly it.
    #[inline]
    fn find_place(&self, command: Tag, is: impl Fn(&Option<(Tag, Tag)>) -> bool) -> Option<usize> {
        let (slot, count) = (command.slot(), self.operations.len());
        let own = if slot < count { slot } else { slot % count };
        let is_such = |at: &usize| self.operations.get(*at).is_some_and(&is);
        Some(own).filter(is_such).or_else(|| (own + 1..count).chain(0..own).find(is_such))
    }

    /// The commands of an operation.
    pub(super) fn commands_of(&self, operation: Tag) -> impl Iterator<Item = Tag> {
        self.operations.iter().flatten().filter(move |(_, of)| *of == operation).map(|(command, _)| *command)
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct IoQueues {
    pub(super) list: Vec<IoQueue>,
    next: usize,
}

impl IoQueues {
    /// The queue with the fewest commands in work that has room for `commands` more; of several the next
    /// in turn.
    pub(super) fn choose_queue(&mut self, commands: usize) -> Option<&mut IoQueue> {
        // There may have been more before.
        let turn = if self.next < self.list.len() { self.next } else { 0 };
        let mut chosen: Option<(usize, usize)> = None;
        for (at, queue) in self.list.iter().enumerate() {
            // Those before the one whose turn it is come last.
            let is_ahead = |(busy, best): (usize, usize)| {
                queue.busy < busy || (queue.busy == busy && best < turn && at >= turn)
            };
            if queue.free_entries() >= commands && chosen.is_none_or(is_ahead) {
                chosen = Some((queue.busy, at));
            }
        }
        let (_, at) = chosen?;
        self.next = at + 1;
        self.list.get_mut(at)
    }

    pub(super) fn find_queue(&mut self, who: QueueId) -> Option<&mut IoQueue> {
        self.list.iter_mut().find(|queue| queue.who == who)
    }

    /// Whether any queue can ever have so many commands in work at once.
    pub(super) fn can_carry(&self, commands: usize) -> bool {
        self.list.iter().any(|queue| queue.window >= commands)
    }

    /// Commands that may be in work at once.
    pub(super) fn command_window(&self) -> usize {
        self.list.iter().map(|queue| queue.window).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_go_where_the_fewest_are_and_in_turn() {
        let id = |qid| QueueId { association: 1, qid };
        let mut io_queues = IoQueues { list: vec![IoQueue::new(id(1), 2), IoQueue::new(id(2), 3)], next: 0 };
        let mut went = Vec::new();
        for n in 0..5 {
            let queue = io_queues.choose_queue(1).unwrap();
            went.push(queue.who.qid);
            queue.note_command_sent(Tag::from_bits(queue.busy as u64), Tag::from_bits(n));
        }
        assert_eq!(went, [1, 2, 1, 2, 2]);
        assert!(io_queues.choose_queue(1).is_none());
        assert_eq!(
            io_queues.find_queue(id(2)).unwrap().take_operation(Tag::from_bits(1)),
            Some(Tag::from_bits(3))
        );
        assert_eq!(io_queues.find_queue(id(2)).unwrap().take_operation(Tag::from_bits(1)), None);
        assert!(io_queues.choose_queue(2).is_none() && io_queues.choose_queue(1).is_some());
        // The place of a command whose end was not heard yet is given to another one.
        let again = Tag::from_bits(1 << 32);
        let queue = io_queues.find_queue(id(2)).unwrap();
        queue.note_command_sent(again, Tag::from_bits(9));
        assert_eq!(queue.take_operation(Tag::from_bits(0)), Some(Tag::from_bits(1)));
        assert_eq!(queue.take_operation(again), Some(Tag::from_bits(9)));
        assert_eq!(io_queues.command_window(), 5);
    }
}

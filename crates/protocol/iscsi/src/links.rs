//! The links of a session, in either role, by slot.
//!
//! A slot lasts as long as its session: a closed link stays in it until another takes it. So an index created
//! here always finds a link, and a number from outside becomes an index only if it names a slot.

use std::ops::{Index, IndexMut};
use stream::LinkNumber;

/// The place of a link in its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LinkIndex(u16);

impl From<LinkIndex> for LinkNumber {
    #[inline]
    fn from(index: LinkIndex) -> LinkNumber {
        LinkNumber(index.0)
    }
}

/// The links of one session.
#[derive(Debug)]
pub(crate) struct Links<L>(Vec<L>);

impl<L> Links<L> {
    /// No link yet.
    pub(crate) const fn new() -> Self {
        Links(Vec::new())
    }

    /// Adds a place. A session has at most 65535: its owner checks.
    pub(crate) fn push(&mut self, link: L) -> LinkIndex {
        let index = LinkIndex(self.0.len() as u16);
        self.0.push(link);
        index
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The place that the world names, if there is one.
    #[inline]
    pub(crate) fn index_of(&self, link: LinkNumber) -> Option<LinkIndex> {
        (usize::from(link.0) < self.0.len()).then_some(LinkIndex(link.0))
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, link: LinkNumber) -> Option<&mut L> {
        self.0.get_mut(usize::from(link.0))
    }

    /// All places. Borrows nothing, so that the session can be changed on the way.
    #[inline]
    pub(crate) fn indices(&self) -> impl Iterator<Item = LinkIndex> + use<L> {
        (0..self.0.len() as u16).map(LinkIndex)
    }

    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &L> {
        self.0.iter()
    }

    #[inline]
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut L> {
        self.0.iter_mut()
    }

    pub(crate) fn enumerate(&self) -> impl Iterator<Item = (LinkIndex, &L)> {
        self.indices().zip(&self.0)
    }

    /// The first link that is so.
    pub(crate) fn position(&self, is: impl FnMut(&L) -> bool) -> Option<LinkIndex> {
        self.0.iter().position(is).map(|index| LinkIndex(index as u16))
    }
}

impl<L> Index<LinkIndex> for Links<L> {
    type Output = L;

    #[inline]
    #[expect(clippy::indexing_slicing, reason = "only `Links` makes an index, and it drops no place")]
    fn index(&self, index: LinkIndex) -> &L {
        &self.0[usize::from(index.0)]
    }
}

impl<L> IndexMut<LinkIndex> for Links<L> {
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "only `Links` makes an index, and it drops no place")]
    fn index_mut(&mut self, index: LinkIndex) -> &mut L {
        &mut self.0[usize::from(index.0)]
    }
}

//! What happens when: events on a heap, earliest first; of one time, in the order they were put down.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use tsnode_protocol::Seconds;

/// Events to come.
#[derive(Clone, Debug)]
pub struct Agenda<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    made: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry<E> {
    at: f64,
    number: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at.total_cmp(&other.at).then(self.number.cmp(&other.number))
    }
}

impl<E> Default for Agenda<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), made: 0 }
    }
}

impl<E> Agenda<E> {
    /// Puts an event down.
    pub fn at(&mut self, at: Seconds, event: E) {
        self.made += 1;
        self.heap.push(Reverse(Entry { at: at.0, number: self.made, event }));
    }

    /// The next event.
    pub fn pop(&mut self) -> Option<(Seconds, E)> {
        self.heap.pop().map(|Reverse(e)| (Seconds(e.at), e.event))
    }

    /// When the next event is.
    #[must_use]
    pub fn next_at(&self) -> Option<Seconds> {
        self.heap.peek().map(|Reverse(e)| Seconds(e.at))
    }

    /// Events put down so far.
    #[must_use]
    pub fn made(&self) -> u64 {
        self.made
    }
}

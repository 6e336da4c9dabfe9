//! What happens when: events on a heap, earliest first; of one time, in the order they were put down.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use tsnode_protocol::Seconds;

/// Events to come.
#[derive(Clone, Debug)]
pub struct Agenda<E> {
    heap: BinaryHeap<Reverse<AgendaEntry<E>>>,
    made: u64,
}

#[derive(Clone, Copy, Debug)]
struct AgendaEntry<E> {
    /// Its time and its number, so that one comparison orders both.
    key: u128,
    event: E,
}

/// A bit pattern whose order as a number is the order of times.
fn ordered(at: f64) -> u64 {
    let bits = at.to_bits();
    if bits >> 63 == 0 { bits | 1 << 63 } else { !bits }
}

fn time(ordered: u64) -> f64 {
    f64::from_bits(if ordered >> 63 == 1 { ordered & !(1 << 63) } else { !ordered })
}

impl<E> PartialEq for AgendaEntry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for AgendaEntry<E> {}

impl<E> PartialOrd for AgendaEntry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for AgendaEntry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key.cmp(&other.key)
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
        self.heap.push(Reverse(AgendaEntry { key: u128::from(ordered(at.0)) << 64 | u128::from(self.made), event }));
    }

    /// The next event.
    pub fn pop(&mut self) -> Option<(Seconds, E)> {
        self.heap.pop().map(|Reverse(e)| (Seconds(time((e.key >> 64) as u64)), e.event))
    }

    /// When the next event is.
    #[must_use]
    pub fn next_at(&self) -> Option<Seconds> {
        self.heap.peek().map(|Reverse(e)| Seconds(time((e.key >> 64) as u64)))
    }

    /// Events put down so far.
    #[must_use]
    pub fn made(&self) -> u64 {
        self.made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_order_of_time_and_then_as_put_down() {
        let times = [3.5, 0.0, -1.0, 3.5, f64::INFINITY, 1e-300, -2.5, 0.0];
        let mut agenda = Agenda::default();
        times.iter().enumerate().for_each(|(n, t)| agenda.at(Seconds(*t), n));
        let mut expected: Vec<(f64, usize)> = times.iter().copied().enumerate().map(|(n, t)| (t, n)).collect();
        expected.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let popped: Vec<(f64, usize)> = std::iter::from_fn(|| agenda.pop()).map(|(t, n)| (t.0, n)).collect();
        assert_eq!(popped, expected);
    }
}

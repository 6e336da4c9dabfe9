//! What goes to a GPU and comes back is what it was, however many pieces it is copied in.

use super::machines;
use crate::{
    cuda::{
        Gpu,
        machine::{GpuMemory, Queue},
    },
    pages::PAGE_BYTES,
};

/// Bytes that a GPU copies at a time (`driver_api/staging.rs`).
const PIECE: usize = 8 << 20;

#[test]
fn bytes_come_back_as_they_went() {
    for machine in machines() {
        for count in [1, PIECE, PIECE + 5, 2 * PIECE, 5 * PIECE + 77] {
            let bytes: Vec<u8> = (0..count).map(|i| (i ^ i >> 8 ^ i >> 16) as u8).collect();
            let memory = GpuMemory::of(&machine, &bytes).unwrap();
            for queue in [Queue::Compute, Queue::Side] {
                let mut back = vec![0; count - count / 3];
                machine.download(queue, memory.at() + (count / 3) as u64, &mut back).unwrap();
                assert!(back == bytes[count / 3..], "{count} bytes");
            }
        }
    }
}

/// What lies together goes at once; where that would overlap, no more than does not.
#[test]
fn pages_are_copied_as_if_one_after_the_other() {
    const PAGES: usize = 16;
    let copies = [(5, 9), (4, 8), (3, 7), (12, 11), (11, 10), (10, 9), (15, 13), (14, 12), (13, 11), (0, 15), (1, 14)];
    for machine in machines() {
        let mut gpu = Gpu::on(machine.clone());
        gpu.reserve(PAGES * PAGE_BYTES).unwrap();
        let pool = gpu.pool();
        let at = |page: usize| pool + (page * PAGE_BYTES) as u64;
        let mut wanted: Vec<u8> = (1..=PAGES as u8).collect();
        for (page, byte) in wanted.iter().enumerate() {
            machine.upload(Queue::Compute, at(page), &vec![*byte; PAGE_BYTES]).unwrap();
        }
        gpu.copy_pages(&copies).unwrap();
        copies.iter().for_each(|(from, to)| wanted[*to as usize] = wanted[*from as usize]);
        for (page, byte) in wanted.iter().enumerate() {
            let mut found = vec![0; PAGE_BYTES];
            machine.download(Queue::Compute, at(page), &mut found).unwrap();
            assert!(found.iter().all(|other| other == byte), "page {page}");
        }
    }
}

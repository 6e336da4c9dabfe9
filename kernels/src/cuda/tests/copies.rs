//! What goes to a GPU and comes back is what it was, however many pieces it is copied in.

use super::machines;
use crate::cuda::machine::{GpuMemory, Queue};

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

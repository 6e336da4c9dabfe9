//! The control plane at a node: the network that carries gossip, the loop that drives `coordinator`'s `Control`, and what it needs beside it.

pub mod driver;
pub mod faults;
pub mod heartbeat_sender;
pub mod owner;
pub mod planner_thread;
pub mod swarm;
pub mod twins;

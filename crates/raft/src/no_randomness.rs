//! A source of random numbers for systems that have none. It returns zeros.
//!
//! tikv's raft draws election time-outs, but [`RaftNode`](crate::RaftNode) replaces them with
//! time-outs from its seed. So these numbers need not be random, but drawing them must not fail.

fn zeros(bytes: &mut [u8]) -> Result<(), getrandom::Error> {
    bytes.fill(0);
    Ok(())
}

getrandom::register_custom_getrandom!(zeros);

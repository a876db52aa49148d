//! Ports that nobody else takes while a test needs them.
//!
//! A port found by binding port 0 and letting it go may be the source port of any connection a moment later, and a
//! busy test opens thousands. So ports come from below the range that the kernel draws from (32768 upwards on Linux),
//! in blocks: a process owns a block while it holds the block's first port.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::{Mutex, PoisonError};

/// Ports in one block; the first guards the rest.
const BLOCK_PORTS: u16 = 50;

/// First port of the first block; below are well-known ones.
const FIRST_PORT: u16 = 10_000;

/// Blocks in all: they end below 21000, where sidecars that choose a port themselves begin.
const BLOCKS: u16 = 219;

struct Block {
    _guard: TcpListener,
    ports: std::ops::Range<u16>,
}

static BLOCK: Mutex<Option<Block>> = Mutex::new(None);

/// Where the demo shows what its sidecars do; its other ports are below those given out here.
const DEMO_ADMIN: u16 = 19_000;

/// Where connections that the kernel captures are led, out and in; no block has them.
const CAPTURE: [u16; 2] = [15_001, 15_006];

/// The first ports of the blocks that this process has had: a guard in a network namespace of its own guards nothing here.
static HAD: Mutex<Vec<u16>> = Mutex::new(Vec::new());

/// The blocks that are used up; their guards are kept until the process ends.
static USED: Mutex<Vec<Block>> = Mutex::new(Vec::new());

/// A port that is free on every address, for TCP and UDP, and that no other test gets.
///
/// # Panics
/// If there is none left.
#[must_use]
pub fn free_port() -> u16 {
    let mut current = BLOCK.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let block = current.get_or_insert_with(claim);
        if let Some(port) = block.ports.find(|port| is_free(*port)) {
            return port;
        }
        if let Some(used) = current.take() {
            USED.lock().unwrap_or_else(PoisonError::into_inner).push(used);
        }
    }
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() && UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok()
}

fn claim() -> Block {
    let start = u16::try_from(std::process::id() % u32::from(BLOCKS)).expect("invariant: below the number of blocks");
    let firsts = (0..BLOCKS).map(|offset| FIRST_PORT + (start + offset) % BLOCKS * BLOCK_PORTS);
    let is_ours = |first: &u16| {
        let block = *first..first + BLOCK_PORTS;
        !block.contains(&DEMO_ADMIN) && !CAPTURE.iter().any(|port| block.contains(port))
    };
    let mut had = HAD.lock().unwrap_or_else(PoisonError::into_inner);
    let claimed = firsts.filter(is_ours).filter(|first| !had.contains(first)).find_map(|first| {
        let guard = TcpListener::bind((Ipv4Addr::LOCALHOST, first)).ok()?;
        Some(Block { _guard: guard, ports: first + 1..first + BLOCK_PORTS })
    });
    had.extend(claimed.iter().map(|block: &Block| block.ports.start - 1));
    claimed.expect("a free block of ports between 10000 and 20950")
}

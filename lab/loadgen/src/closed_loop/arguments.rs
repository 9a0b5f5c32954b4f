//! The closed loops on the command line, with the names and flags of etcd's `benchmark`.

use clap::{Args, Subcommand, ValueEnum};

use crate::arguments::OutputArguments;
use crate::target::Target;
use crate::within::within;

const BILLION: u64 = 1_000_000_000;

/// Clients that each send a request when the previous one is answered
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum ClosedLoop {
    /// Puts random or consecutive keys
    Put {
        #[command(flatten)]
        keys: KeyArguments,
        #[command(flatten)]
        options: LoopArguments,
        /// Puts keys in ascending order instead of random keys
        #[arg(long)]
        sequential_keys: bool,
        /// Seconds between compactions (0: never)
        #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = within(0..=86_400))]
        compact_interval: u64,
        /// Revisions that each compaction keeps
        #[arg(long, value_name = "N", default_value_t = 1000, value_parser = within(0..=BILLION))]
        compact_index_delta: u64,
        /// Compares the hashes of all members at the end
        #[arg(long)]
        check_hashkv: bool,
    },
    /// Reads a key or a range of keys
    Range {
        #[command(flatten)]
        range: RangeArguments,
        #[command(flatten)]
        options: LoopArguments,
    },
    /// Transactions of puts
    TxnPut {
        #[command(flatten)]
        keys: KeyArguments,
        /// Number of puts in each transaction
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = within(1..=10_000))]
        txn_ops: u64,
        #[command(flatten)]
        options: LoopArguments,
    },
    /// Transactions that read or write
    TxnMixed {
        #[command(flatten)]
        keys: KeyArguments,
        /// The first key after the range of a read; by default a read has all keys
        #[arg(long, value_name = "KEY", default_value = "")]
        end_key: String,
        /// Maximum number of keys in a read (0: all)
        #[arg(long, value_name = "N", default_value_t = 1000, value_parser = within(0..=BILLION))]
        limit: u64,
        /// Consistency of reads: linearizable or serializable
        #[arg(long, value_enum, default_value_t = Consistency::Linearizable)]
        consistency: Consistency,
        /// Number of reads for each write, on average
        #[arg(long, value_name = "RATIO", default_value = "1", value_parser = ratio)]
        rw_ratio: u64,
        #[command(flatten)]
        options: LoopArguments,
    },
    /// Creates watches and puts the watched keys
    Watch {
        /// Watches on each stream
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = within(1..=100_000))]
        watch_per_stream: u64,
        /// Number of different keys that are watched
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = within(1..=10_000_000))]
        watched_key_total: u64,
        /// Maximum number of puts a second (0: as many as are answered)
        #[arg(long, value_name = "N", default_value_t = 0, value_parser = within(0..=1_000_000))]
        put_rate: u64,
        #[command(flatten)]
        options: WatchArguments,
    },
    /// Measures the time from a put to its event at each watch
    WatchLatency {
        /// Watches on each stream
        #[arg(long, value_name = "N", default_value_t = 10, value_parser = within(1..=100_000))]
        watchers_per_stream: u64,
        /// Requests the previous record with each event
        #[arg(long)]
        prevkv: bool,
        /// Puts per second
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = within(1..=1_000_000))]
        put_rate: u64,
        /// Size of each value, in bytes
        #[arg(long, value_name = "N", default_value_t = 32, value_parser = within(0..=1_048_576))]
        val_size: u64,
        #[command(flatten)]
        options: WatchArguments,
    },
    /// Keeps leases alive, one for each client
    LeaseKeepalive {
        #[command(flatten)]
        options: LoopArguments,
    },
}

impl ClosedLoop {
    pub fn common(&self) -> &CommonArguments {
        self.options().0
    }

    /// Returns the options that all loops have, and the further options of a loop of requests. The
    /// second part is `None` for the watch loops.
    pub(super) fn options(&self) -> (&CommonArguments, Option<&LoopArguments>) {
        match self {
            ClosedLoop::Put { options, .. }
            | ClosedLoop::Range { options, .. }
            | ClosedLoop::TxnPut { options, .. }
            | ClosedLoop::TxnMixed { options, .. }
            | ClosedLoop::LeaseKeepalive { options } => (&options.common, Some(options)),
            ClosedLoop::Watch { options, .. } | ClosedLoop::WatchLatency { options, .. } => {
                (&options.common, None)
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct CommonArguments {
    #[command(flatten)]
    pub target: Target,
    /// Number of connections, which clients use in turn
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = within(1..=10_000))]
    pub conns: u64,
    /// Number of clients
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = within(1..=100_000))]
    pub clients: u64,
    /// The server's process; reports its processor time and memory during the load
    #[arg(long)]
    pub pid: Option<u32>,
    #[command(flatten)]
    pub output: OutputArguments,
}

#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct LoopArguments {
    /// Number of requests of all clients
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    #[arg(value_parser = within(1..=100 * BILLION))]
    pub total: u64,
    /// Maximum number of requests a second (0: as many as are answered)
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = within(0..=10_000_000))]
    pub rate: u64,
    /// Ends after this number of seconds, even if there are requests left
    #[arg(long, value_name = "N", value_parser = within(1..=86_400))]
    pub seconds: Option<u64>,
    /// Threads among which the clients are divided
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = within(1..=256))]
    pub threads: u64,
    #[command(flatten)]
    pub common: CommonArguments,
}

#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct WatchArguments {
    /// Number of watch streams
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = within(1..=100_000))]
    pub streams: u64,
    /// Number of puts
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = within(1..=BILLION))]
    pub put_total: u64,
    /// Size of each key, in bytes
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = within(1..=65_536))]
    pub key_size: u64,
    #[command(flatten)]
    pub common: CommonArguments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Args)]
pub struct KeyArguments {
    /// Size of each key, in bytes
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = within(1..=65_536))]
    pub key_size: u64,
    /// Size of each value, in bytes
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = within(0..=1_048_576))]
    pub val_size: u64,
    /// Number of different keys
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = within(1..=BILLION))]
    pub key_space_size: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct RangeArguments {
    /// The key, or the start of the range
    #[arg(id = "FIRST", value_name = "KEY")]
    pub key: String,
    /// The first key after the range; by default only KEY is read
    #[arg(id = "END", value_name = "END")]
    pub end: Option<String>,
    /// Consistency of reads: linearizable or serializable
    #[arg(long, value_enum, default_value_t = Consistency::Linearizable)]
    pub consistency: Consistency,
    /// Maximum number of keys in an answer (0: all)
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = within(0..=BILLION))]
    pub limit: u64,
    /// Requests only the number of keys
    #[arg(long)]
    pub count_only: bool,
    /// Requests keys without values
    #[arg(long)]
    pub keys_only: bool,
    /// Reads all keys that start with KEY
    #[arg(long, conflicts_with = "END")]
    pub prefix: bool,
    /// Reads by RangeStream instead of Range
    #[arg(long)]
    pub stream: bool,
    /// Reads in pages of 10,000 keys
    #[arg(long, conflicts_with_all = ["stream", "limit", "count_only"])]
    pub paginate: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Consistency {
    #[value(name = "l", alias = "linearizable")]
    Linearizable,
    #[value(name = "s", alias = "serializable")]
    Serializable,
}

/// Parses a ratio. Returns it in thousandths.
fn ratio(text: &str) -> Result<u64, String> {
    let number = text.parse::<f64>().ok().filter(|ratio| (0.0..=1e6).contains(ratio));
    let number = number.ok_or_else(|| "must be a number from 0 to 1000000".to_owned())?;
    Ok((number * 1000.0).round() as u64)
}

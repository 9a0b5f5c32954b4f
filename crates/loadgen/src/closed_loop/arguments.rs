//! The closed loops on the command line: names and flags of etcd's `benchmark`.

use clap::{Args, Subcommand, ValueEnum};

use crate::arguments::OutputArguments;
use crate::target::Target;

/// Clients that each send a request when the one before is answered
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum ClosedLoop {
    /// Puts
    Put {
        #[command(flatten)]
        keys: KeyArguments,
        #[command(flatten)]
        options: LoopArguments,
        /// Keys in ascending order, not random ones
        #[arg(long)]
        sequential_keys: bool,
        /// Compacts so often (0: never)
        #[arg(long, value_name = "SECONDS", default_value_t = 0)]
        #[arg(value_parser = clap::value_parser!(u64).range(0..=86_400))]
        compact_interval: u64,
        /// Revisions that such a compaction keeps
        #[arg(long, value_name = "N", default_value_t = 1000)]
        #[arg(value_parser = clap::value_parser!(u64).range(0..=1_000_000_000))]
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
        /// Puts in each transaction
        #[arg(long, value_name = "N", default_value_t = 1)]
        #[arg(value_parser = clap::value_parser!(u64).range(1..=10_000))]
        txn_ops: u64,
        #[command(flatten)]
        options: LoopArguments,
    },
    /// Transactions that read or write
    TxnMixed {
        #[command(flatten)]
        keys: KeyArguments,
        /// Where reads end; up to the last key, if it is left out
        #[arg(long, value_name = "KEY", default_value = "")]
        end_key: String,
        /// The most keys of a read (0: all)
        #[arg(long, value_name = "N", default_value_t = 1000)]
        #[arg(value_parser = clap::value_parser!(u64).range(0..=1_000_000_000))]
        limit: u64,
        /// How reads are made
        #[arg(long, value_enum, default_value_t = Consistency::Linearizable)]
        consistency: Consistency,
        /// So many reads for each write
        #[arg(long, value_name = "RATIO", default_value = "1", value_parser = ratio)]
        rw_ratio: Ratio,
        #[command(flatten)]
        options: LoopArguments,
    },
    /// Watches of keys that are put, from the watch to its last event
    Watch {
        /// Streams
        #[arg(long, value_name = "N", default_value_t = 10)]
        #[arg(value_parser = clap::value_parser!(u64).range(1..=100_000))]
        streams: u64,
        /// Watches on each
        #[arg(long, value_name = "N", default_value_t = 100)]
        #[arg(value_parser = clap::value_parser!(u64).range(1..=100_000))]
        watch_per_stream: u64,
        /// Different keys that are watched
        #[arg(long, value_name = "N", default_value_t = 1)]
        #[arg(value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
        watched_key_total: u64,
        /// Puts
        #[arg(long, value_name = "N", default_value_t = 1000)]
        #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
        put_total: u64,
        /// Puts a second (0: as many as are answered)
        #[arg(long, value_name = "N", default_value_t = 0)]
        #[arg(value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
        put_rate: u64,
        /// Bytes of each key
        #[arg(long, value_name = "N", default_value_t = 32)]
        #[arg(value_parser = clap::value_parser!(u64).range(1..=65_536))]
        key_size: u64,
        #[command(flatten)]
        common: CommonArguments,
    },
    /// From a put to the event of each watch
    WatchLatency {
        /// Streams
        #[arg(long, value_name = "N", default_value_t = 10)]
        #[arg(value_parser = clap::value_parser!(u64).range(1..=100_000))]
        streams: u64,
        /// Watches on each
        #[arg(long, value_name = "N", default_value_t = 10)]
        #[arg(value_parser = clap::value_parser!(u64).range(1..=100_000))]
        watchers_per_stream: u64,
        /// Asks for the value before
        #[arg(long)]
        prevkv: bool,
        /// Puts
        #[arg(long, value_name = "N", default_value_t = 1000)]
        #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
        put_total: u64,
        /// Puts a second
        #[arg(long, value_name = "N", default_value_t = 100)]
        #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
        put_rate: u64,
        /// Bytes of the key
        #[arg(long, value_name = "N", default_value_t = 32)]
        #[arg(value_parser = clap::value_parser!(u64).range(1..=65_536))]
        key_size: u64,
        /// Bytes of the value
        #[arg(long, value_name = "N", default_value_t = 32)]
        #[arg(value_parser = clap::value_parser!(u64).range(0..=1_048_576))]
        val_size: u64,
        #[command(flatten)]
        common: CommonArguments,
    },
    /// Keeps leases alive, one for each client
    LeaseKeepalive {
        #[command(flatten)]
        options: LoopArguments,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct CommonArguments {
    #[command(flatten)]
    pub target: Target,
    /// Connections, which clients use in turn
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub conns: u64,
    /// Clients
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub clients: u64,
    /// Tells what this process, the server, used meanwhile, as Linux says
    #[arg(long)]
    pub pid: Option<u32>,
    #[command(flatten)]
    pub output: OutputArguments,
}

#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct LoopArguments {
    /// Requests of all clients
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=100_000_000_000))]
    pub total: u64,
    /// The most requests a second (0: as many as are answered)
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u64).range(0..=10_000_000))]
    pub rate: u64,
    /// Ends after so long, if there are requests left
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: Option<u64>,
    /// Threads that clients are spread over
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=256))]
    pub threads: u64,
    #[command(flatten)]
    pub common: CommonArguments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Args)]
pub struct KeyArguments {
    /// Bytes of each key
    #[arg(long, value_name = "N", default_value_t = 8)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=65_536))]
    pub key_size: u64,
    /// Bytes of each value
    #[arg(long, value_name = "N", default_value_t = 8)]
    #[arg(value_parser = clap::value_parser!(u64).range(0..=1_048_576))]
    pub val_size: u64,
    /// How many different keys there are
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub key_space_size: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct RangeArguments {
    /// The key
    #[arg(id = "FIRST", value_name = "KEY")]
    pub key: String,
    /// The first key behind the range; without it, only the key is read
    #[arg(id = "END", value_name = "END")]
    pub end: Option<String>,
    /// How reads are made
    #[arg(long, value_enum, default_value_t = Consistency::Linearizable)]
    pub consistency: Consistency,
    /// The most keys of an answer (0: all)
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u64).range(0..=1_000_000_000))]
    pub limit: u64,
    /// Asks for the number of keys
    #[arg(long)]
    pub count_only: bool,
    /// Asks for keys without values
    #[arg(long)]
    pub keys_only: bool,
    /// Reads all keys that begin with the key
    #[arg(long, conflicts_with = "END")]
    pub prefix: bool,
    /// Asks by RangeStream
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

/// In thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ratio(pub u64);

fn ratio(text: &str) -> Result<Ratio, String> {
    let number = text.parse::<f64>().ok().filter(|ratio| (0.0..=1e6).contains(ratio));
    let number = number.ok_or_else(|| "it must be a number from 0 to 1000000".to_owned())?;
    Ok(Ratio((number * 1000.0).round() as u64))
}

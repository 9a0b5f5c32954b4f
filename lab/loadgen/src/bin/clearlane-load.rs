//! Fills a server with keys, and runs workloads against it:
//! ```text
//!   clearlane-load fill crates/loadgen/workloads/head-of-line.toml --connections 4
//!   clearlane-load run crates/loadgen/workloads/head-of-line.toml --json with.json
//!   clearlane-load keys --count 1000000 --key-size 32 --value-size 64
//!   clearlane-load stall watch --keys 1000000 --seconds 10
//!   clearlane-load storm handshakes --address 127.0.0.1:2379 --seconds 10
//!   clearlane-load day --pid 4711 --json clearlane.json
//!   clearlane-load experiment expensive-reads --scale small
//!   clearlane-load stub --listen 127.0.0.1:2379
//! ```
//!
//! Results go to the standard output, progress to the standard error if that is a terminal. The
//! exit status is 1 if something went wrong, no class has answers, or a day has made a server grow
//! or left something over, and 2 if the arguments are wrong.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;
use std::{env, iter};

use clap::Parser as _;
use clearlane_loadgen::arguments::{
    AuthSwitch, BcryptArguments, DayArguments, FillOptions, OutputArguments, StallArguments,
    StormArguments, StubArguments, Subcommand,
};
use clearlane_loadgen::bare_bcrypt::check_passwords;
use clearlane_loadgen::day::{self, DayOptions, DayReport};
use clearlane_loadgen::experiment::{self, ExperimentArguments};
use clearlane_loadgen::fill::fill;
use clearlane_loadgen::keys::KeySpace;
use clearlane_loadgen::page::{self, RunSummary};
use clearlane_loadgen::process::Process;
use clearlane_loadgen::report::Report;
use clearlane_loadgen::run::{RunOptions, run};
use clearlane_loadgen::stall::{Row, Stall, StallOptions};
use clearlane_loadgen::stop::Stop;
use clearlane_loadgen::storm::{self, StormKind, StormOptions};
use clearlane_loadgen::stub::{self, StubSizes};
use clearlane_loadgen::target::Target;
use clearlane_loadgen::users::{self, User};
use clearlane_loadgen::workload::{self, ShippedWorkload, Workload};
use clearlane_loadgen::{Error, Result, closed_loop, connection, disk};
use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let asked = match Subcommand::try_parse() {
        Ok(asked) => asked,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(error.exit_code() as u8);
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::Local(format!("no runtime: {error}")));
    match runtime.and_then(|runtime| runtime.block_on(execute(asked))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(trouble) => {
            let _ = writeln!(io::stderr(), "clearlane-load: {trouble}");
            ExitCode::FAILURE
        }
    }
}

async fn execute(asked: Subcommand) -> Result<()> {
    match asked {
        Subcommand::Fill { workload, options } => run_fill(&read(&workload)?.space, &options).await,
        Subcommand::Keys { count, key_size, value_size, options } => {
            run_fill(&workload::key_space(count, key_size, value_size)?, &options).await
        }
        Subcommand::Run { workload, target, without, seconds, warm_up, pid, output } => {
            let mut workload = read(&workload)?.without(&without)?;
            workload.seconds = seconds.unwrap_or(workload.seconds);
            let process = pid.map(Process::open).transpose()?;
            let results = ResultFiles::create(&output)?;
            let (seed, warm_up) = (target.seed, Duration::from_secs(warm_up));
            let target = target.open().await?;
            let stop = Stop::default();
            stop.set_at_signals()?;
            let options = RunOptions { process, warm_up, stop, ..RunOptions::new(target, seed) };
            results.write(&run(&workload, &options, &mut progress_printer()).await?)
        }
        Subcommand::Workloads => workload::SHIPPED.iter().try_for_each(|shipped| {
            print_line(&format!("{:18} {}", shipped.name, shipped.about()))
        }),
        Subcommand::ClosedLoop(asked) => {
            let common = asked.common();
            let results = ResultFiles::create(&common.output)?;
            let target = common.target.open().await?;
            let stop = Stop::default();
            stop.set_at_signals()?;
            results.write(&closed_loop::run(&asked, target, stop, &mut progress_printer()).await?)
        }
        Subcommand::Disk { dir, json } => run_disk(dir, json.as_deref()).await,
        Subcommand::Stall { row, target, options } => run_stall(row, &target, options).await,
        Subcommand::Rows => Row::all()
            .iter()
            .try_for_each(|row| print_line(&format!("{:14} {}", row.name(), row.about()))),
        Subcommand::Storm { kind, options } => run_storm(kind, options).await,
        Subcommand::Storms => StormKind::all()
            .iter()
            .try_for_each(|kind| print_line(&format!("{:14} {}", kind.name(), kind.about()))),
        Subcommand::Auth { state, target } => run_auth(state, &target).await,
        Subcommand::Bcrypt(arguments) => run_bcrypt(arguments),
        Subcommand::Day { target, options } => run_day(&target, options).await,
        Subcommand::Curves { days, svg } => print_curves(&days, svg.as_deref()),
        Subcommand::Compare { runs, html, svg } => compare(&runs, html.as_deref(), svg.as_deref()),
        Subcommand::Experiment(arguments) => run_experiments(&arguments).await,
        Subcommand::Stub(arguments) => run_stub(arguments).await,
    }
}

/// The first line is for whatever starts the probes: the head start begins.
async fn run_stall(row: Row, target: &Target, options: StallArguments) -> Result<()> {
    let StallArguments { keys, seconds, head_start, clients, pid, json } = options;
    let endpoint = target.endpoint()?;
    let json = json.as_deref().map(create).transpose()?;
    let head_start = Duration::from_secs(head_start);
    let (seed, process) = (target.seed, pid.map(Process::open).transpose()?);
    let options = StallOptions { endpoint, keys, seed, head_start, clients, process };
    let stall = Stall::prepare(row, options).await?;
    print_line(&format!("{}: begins", row.name()))?;
    let report = stall.run(Duration::from_secs(seconds)).await?;
    print_line(&report.line())?;
    if let Some(mut file) = json {
        writeln!(file, "{:#}", report.json()).map_err(write_error)?;
    }
    if report.metrics.answered() == 0 && report.metrics.failed() > 0 {
        return Err(no_answers());
    }
    Ok(())
}

async fn run_storm(kind: StormKind, arguments: StormArguments) -> Result<()> {
    let StormArguments { address, seconds, rate, seed } = arguments;
    let window = Duration::from_secs(seconds);
    print_line(&format!("{}: begins", kind.name()))?;
    let report = storm::run(kind, StormOptions { address, window, rate, seed }).await?;
    print_line(&report.line())
}

async fn run_auth(state: AuthSwitch, target: &Target) -> Result<()> {
    let channel = connection::open(&target.endpoint()?.into(), 1).await?.remove(0);
    match state {
        AuthSwitch::On => {
            users::enable(channel).await?;
            let User { name, password } = User::of_load();
            print_line(&format!("authentication is on: --user {name}:{password}"))
        }
        AuthSwitch::Off => {
            users::disable(channel).await?;
            print_line("authentication is off")
        }
    }
}

fn run_bcrypt(arguments: BcryptArguments) -> Result<()> {
    let BcryptArguments { threads, cost, seconds, json } = arguments;
    let json = json.as_deref().map(create).transpose()?;
    let cores = || thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let threads = threads.unwrap_or_else(cores);
    let report = check_passwords(cost, threads, Duration::from_secs(seconds))?;
    print_line(&report.line())?;
    if let Some(mut file) = json {
        writeln!(file, "{:#}", report.json()).map_err(write_error)?;
    }
    Ok(())
}

async fn run_day(target: &Target, arguments: DayArguments) -> Result<()> {
    let DayArguments { pid, data_dir, hours, keys, requests, connections, .. } = arguments;
    if let Some(hour) = arguments.defragment.filter(|hour| *hour > hours) {
        let allowed = format!("it must be at most {hours}, as --hours is");
        return Err(Error::Local(format!("--defragment {hour}: {allowed}")));
    }
    let json = arguments.json.as_deref().map(create).transpose()?;
    let options = DayOptions {
        endpoint: target.endpoint()?,
        process: Process::open(pid)?,
        data_dir,
        seed: target.seed,
        hours,
        keys,
        requests,
        connections,
        takes_snapshots: arguments.snapshots,
        defragment_hour: arguments.defragment,
        bound_percent: arguments.bound as f64,
    };
    // A line that cannot be written any more does not end the day.
    let report = day::run(options, &mut |line| _ = print_line(line)).await?;
    if let Some(mut file) = json {
        writeln!(file, "{:#}", report.json()).map_err(write_error)?;
    }
    print_line(report.lines().trim_end())?;
    report.check()
}

fn print_curves(files: &[PathBuf], svg: Option<&Path>) -> Result<()> {
    let days = files.iter().map(|path| {
        let of = |what: String| Error::Local(format!("{}: {what}", path.display()));
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok((name, DayReport::from_json(&read_json(path)?).map_err(of)?))
    });
    let days = days.collect::<Result<Vec<_>>>()?;
    day::check_comparable(&days)?;
    print_line(day::markdown(&days).trim_end())?;
    match svg {
        Some(path) => create(path)?.write_all(day::svg(&days).as_bytes()).map_err(write_error),
        None => Ok(()),
    }
}

async fn run_disk(dir: PathBuf, json: Option<&Path>) -> Result<()> {
    let json = json.map(create).transpose()?;
    let stop = Stop::default();
    stop.set_at_signals()?;
    // On a thread of its own: this one hears the signals.
    let work = move || disk::check_disk(&dir, &stop, &mut progress_printer());
    let report = tokio::task::spawn_blocking(work).await.expect("it does not panic")?;
    print_line(&report.lines())?;
    match json {
        Some(mut file) => writeln!(file, "{:#}", report.json()).map_err(write_error),
        None => Ok(()),
    }
}

/// Created before a run, so that an error does not lose its results.
struct ResultFiles {
    json: Option<File>,
    csv: Option<File>,
    html: Option<File>,
    svg: Option<PathBuf>,
    prints_samples: bool,
}

impl ResultFiles {
    fn create(output: &OutputArguments) -> Result<ResultFiles> {
        let open = |path: &Option<PathBuf>| path.as_deref().map(create).transpose();
        let (json, csv, html) = (open(&output.json)?, open(&output.csv)?, open(&output.html)?);
        if let Some(dir) = &output.svg {
            create_dir(dir)?;
        }
        let svg = output.svg.clone();
        Ok(ResultFiles { json, csv, html, svg, prints_samples: output.sample })
    }

    /// An error, too, if no request was answered.
    fn write(self, report: &Report) -> Result<()> {
        let mut value = report.json();
        value["command"] = command_line().into();
        if let Some(mut file) = self.json {
            writeln!(file, "{value:#}").map_err(write_error)?;
        }
        let name = report.servers.first().map_or("run", |server| server.short_name());
        let run = RunSummary::from_json(name, &value).map_err(Error::Local)?;
        write_page(&[run], self.html, self.svg.as_deref())?;
        if let Some(mut file) = self.csv {
            file.write_all(report.csv().as_bytes()).map_err(write_error)?;
        }
        // Behind the files: the output may be a pipe that nothing reads any more.
        print_line(report.table().trim_end())?;
        print_line(report.histograms().trim_end())?;
        if self.prints_samples {
            print_line(report.samples().trim_end())?;
        }
        if report.answered() == 0 { Err(no_answers()) } else { Ok(()) }
    }
}

/// As it can be pasted, but for the password of a user.
fn command_line() -> String {
    let mut is_user = false;
    let arguments = env::args_os().skip(1).map(|argument| {
        let argument = argument.to_string_lossy().into_owned();
        let hidden = is_user.then(|| argument.split_once(':')).flatten();
        is_user = argument == "--user";
        let inline = argument.strip_prefix("--user=").and_then(|user| user.split_once(':'));
        match (hidden, inline) {
            (Some((name, _)), _) => quoted(&format!("{name}:PASSWORD")),
            (_, Some((name, _))) => quoted(&format!("--user={name}:PASSWORD")),
            _ => quoted(&argument),
        }
    });
    iter::once("clearlane-load".to_owned()).chain(arguments).collect::<Vec<_>>().join(" ")
}

/// For a shell.
fn quoted(argument: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=,@%+".contains(&byte);
    if !argument.is_empty() && argument.bytes().all(is_plain) {
        argument.to_owned()
    } else {
        format!("'{}'", argument.replace('\'', "'\\''"))
    }
}

fn compare(files: &[PathBuf], html: Option<&Path>, svg: Option<&Path>) -> Result<()> {
    let runs = files.iter().map(|path| {
        let of = |what: String| Error::Local(format!("{}: {what}", path.display()));
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        RunSummary::from_json(&name, &read_json(path)?).map_err(of)
    });
    let runs = runs.collect::<Result<Vec<_>>>()?;
    if let Some(dir) = svg {
        create_dir(dir)?;
    }
    write_page(&runs, html.map(create).transpose()?, svg)
}

fn write_page(runs: &[RunSummary], html: Option<File>, svg: Option<&Path>) -> Result<()> {
    if let Some(mut file) = html {
        file.write_all(page::run_page(runs).as_bytes()).map_err(write_error)?;
    }
    let Some(dir) = svg else { return Ok(()) };
    for figure in page::run_figures(runs) {
        create(&dir.join(figure.file_name))?
            .write_all(figure.svg.as_bytes())
            .map_err(write_error)?;
    }
    Ok(())
}

fn read_json(path: &Path) -> Result<serde_json::Value> {
    let of = |what: String| Error::Local(format!("{}: {what}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| of(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| of(error.to_string()))
}

fn create_dir(path: &Path) -> Result<()> {
    let of = |error| Error::Local(format!("{}: {error}", path.display()));
    fs::create_dir_all(path).map_err(of)
}

/// A signal ends what runs; the reports of what has ended are written before.
async fn run_experiments(arguments: &ExperimentArguments) -> Result<()> {
    let stop = Stop::default();
    stop.set_at_signals()?;
    let progress = RefCell::new(progress_printer());
    let tell = move |line: &str| (*progress.borrow_mut())(line);
    experiment::run(arguments, tell, stop, &mut print_line).await
}

fn no_answers() -> Error {
    Error::Server("no request was answered".to_owned())
}

/// Until the process is ended.
async fn run_stub(arguments: StubArguments) -> Result<()> {
    let StubArguments { listen, key_size, value_size, snapshot_size } = arguments;
    let sizes =
        StubSizes { key: key_size as usize, value: value_size as usize, snapshot: snapshot_size };
    let address = stub::start(listen, sizes)?;
    print_line(&format!("listens at http://{address}"))?;
    std::future::pending().await
}

async fn run_fill(space: &KeySpace, options: &FillOptions) -> Result<()> {
    let FillOptions { target, connections } = options;
    let open = target.open().await?;
    let tell = &mut progress_printer();
    let filled =
        fill(space, &open.endpoints, open.session, *connections, target.seed, tell).await?;
    let (seconds, mb) = (filled.elapsed.as_secs_f64(), filled.bytes as f64 / 1e6);
    let keys = filled.keys;
    print_line(&format!(
        "{keys} keys, {mb:.0} MB, in {seconds:.1} s: {:.0} keys/s",
        keys as f64 / seconds
    ))
}

/// A file, or a workload that ships.
fn read(path: &Path) -> Result<Workload> {
    if let Some(shipped) = path.to_str().and_then(ShippedWorkload::named)
        && !path.exists()
    {
        return Workload::parse(shipped.text);
    }
    let of = |what: String| format!("{}: {what}", path.display());
    let text = fs::read_to_string(path).map_err(|error| {
        let names = workload::SHIPPED.map(|shipped| shipped.name).join(", ");
        Error::Local(of(format!("{error}; the workloads that ship are {names}")))
    })?;
    Workload::parse(&text).map_err(|trouble| Error::Workload(of(trouble.to_string())))
}

fn create(path: &Path) -> Result<File> {
    File::create(path).map_err(|error| Error::Local(format!("{}: {error}", path.display())))
}

fn write_error(error: io::Error) -> Error {
    Error::Local(format!("the results could not be written: {error}"))
}

fn print_line(text: &str) -> Result<()> {
    writeln!(io::stdout(), "{text}").map_err(write_error)
}

/// Does nothing if the standard error is redirected: it then has errors only.
fn progress_printer() -> impl FnMut(&str) {
    let is_terminal = io::stderr().is_terminal();
    move |line| {
        if is_terminal {
            let _ = writeln!(io::stderr(), "{line}");
        }
    }
}

//! The program `clearlane-load`: fills a server with keys, and puts it under load. Examples:
//! ```text
//!   clearlane-load fill lab/loadgen/workloads/head-of-line.toml --connections 4
//!   clearlane-load run lab/loadgen/workloads/head-of-line.toml --json with.json
//!   clearlane-load keys --count 1000000 --key-size 32 --value-size 64
//!   clearlane-load stall watch --keys 1000000 --seconds 10
//!   clearlane-load storm handshakes --address 127.0.0.1:2379 --seconds 10
//!   clearlane-load day --pid 4711 --json clearlane.json
//!   clearlane-load experiment expensive-reads --scale small
//!   clearlane-load stub --listen 127.0.0.1:2379
//! ```
//!
//! Results go to the standard output. Progress goes to the standard error if that is a terminal.
//! The exit status is 2 if the arguments cannot be parsed. It is 1 if an argument is found to be
//! wrong later, if something failed, or if a run or a closed loop got no responses. It is also 1 if
//! a server has grown during a `day`, or has kept keys, leases or watches after it.

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
    AuthSwitch, BcryptArguments, FillOptions, OutputArguments, StubArguments, Subcommand, quoted,
};
use clearlane_loadgen::bare_bcrypt::check_passwords;
use clearlane_loadgen::day::{self, DayOptions, DayReport, DayTarget};
use clearlane_loadgen::experiment::{self, ExperimentArguments};
use clearlane_loadgen::fill::fill;
use clearlane_loadgen::keys::KeySpace;
use clearlane_loadgen::named::Named;
use clearlane_loadgen::page::{self, RunSummary};
use clearlane_loadgen::process::Process;
use clearlane_loadgen::report::Report;
use clearlane_loadgen::run::{RunOptions, run};
use clearlane_loadgen::stall::{Row, Stall, StallTarget};
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
    let runtime =
        runtime.map_err(|error| Error::Local(format!("cannot start the async runtime: {error}")));
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
            let stop = Stop::at_signals()?;
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
            let stop = Stop::at_signals()?;
            results.write(&closed_loop::run(&asked, target, stop, &mut progress_printer()).await?)
        }
        Subcommand::Disk { dir, json } => run_disk(dir, json.as_deref()).await,
        Subcommand::Stall { row, target, options, seconds, pid, json } => {
            let json = ResultFile::create(json.as_deref())?;
            let (endpoint, process) = (target.endpoint()?, pid.map(Process::open).transpose()?);
            let target = StallTarget { endpoint, seed: target.seed, process };
            let stall = Stall::prepare(row, target, options).await?;
            run_stall(row, stall, Duration::from_secs(seconds), json).await
        }
        Subcommand::Rows => print_line(&Row::list()),
        Subcommand::Storm { kind, options } => run_storm(kind, options).await,
        Subcommand::Storms => print_line(&StormKind::list()),
        Subcommand::Auth { state, target } => run_auth(state, &target).await,
        Subcommand::Bcrypt(arguments) => run_bcrypt(arguments),
        Subcommand::Day { target, options, pid, json } => {
            run_day(&target, options, pid, json.as_deref()).await
        }
        Subcommand::Curves { days, svg } => print_curves(&days, svg.as_deref()),
        Subcommand::Compare { runs, html, svg } => compare(&runs, html.as_deref(), svg.as_deref()),
        Subcommand::Experiment(arguments) => run_experiments(&arguments).await,
        Subcommand::Stub(arguments) => run_stub(arguments).await,
    }
}

/// Sends the expensive requests of a row. The first line of output informs the calling script that
/// the head start of the row has begun. The script can then start its probes.
async fn run_stall(row: Row, stall: Stall, window: Duration, json: ResultFile) -> Result<()> {
    print_line(&format!("{}: begins", row.name()))?;
    let report = stall.run(window).await?;
    print_line(&report.line())?;
    json.write_json(&report.json())?;
    if report.metrics.answered() == 0 && report.metrics.failed() > 0 {
        return Err(no_answers());
    }
    Ok(())
}

async fn run_storm(kind: StormKind, options: StormOptions) -> Result<()> {
    print_line(&format!("{}: begins", kind.name()))?;
    let report = storm::run(kind, options).await?;
    print_line(&report.line())
}

async fn run_auth(state: AuthSwitch, target: &Target) -> Result<()> {
    let channel = connection::channel(&target.endpoint()?).await?;
    match state {
        AuthSwitch::On => {
            users::enable(channel).await?;
            let User { name, password } = User::of_load();
            print_line(&format!("authentication is enabled: --user {name}:{password}"))
        }
        AuthSwitch::Off => {
            users::disable(channel).await?;
            print_line("authentication is disabled")
        }
    }
}

fn run_bcrypt(arguments: BcryptArguments) -> Result<()> {
    let BcryptArguments { threads, cost, seconds, json } = arguments;
    let json = ResultFile::create(json.as_deref())?;
    let cores = || thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let threads = threads.unwrap_or_else(cores);
    let report = check_passwords(cost, threads, Duration::from_secs(seconds))?;
    print_line(&report.line())?;
    json.write_json(&report.json())
}

async fn run_day(
    target: &Target,
    options: DayOptions,
    pid: u32,
    json: Option<&Path>,
) -> Result<()> {
    let json = ResultFile::create(json)?;
    let (endpoint, process) = (target.endpoint()?.list()[0].clone(), Process::open(pid)?);
    let target = DayTarget { endpoint, process, seed: target.seed };
    // If the standard output no longer accepts a line, the day still continues.
    let report = day::run(target, options, &mut |line| _ = print_line(line)).await?;
    json.write_json(&report.json())?;
    print_line(report.lines().trim_end())?;
    report.check()
}

fn print_curves(files: &[PathBuf], svg: Option<&Path>) -> Result<()> {
    let days = read_all(files, |name, day| Ok((name.to_owned(), DayReport::from_json(day)?)))?;
    day::check_comparable(&days)?;
    print_line(day::markdown(&days).trim_end())?;
    ResultFile::create(svg)?.write(&day::svg(&days))
}

async fn run_disk(dir: PathBuf, json: Option<&Path>) -> Result<()> {
    let json = ResultFile::create(json)?;
    let stop = Stop::at_signals()?;
    // The check blocks, so it runs on another thread. This thread handles the signals.
    let work = move || disk::check_disk(&dir, &stop, &mut progress_printer());
    let report = tokio::task::spawn_blocking(work).await.expect("it does not panic")?;
    print_line(&report.lines())?;
    json.write_json(&report.json())
}

/// The file of an option such as `--json`, if the option is used. The file is created before a run,
/// so that an error in its name does not lose the results.
struct ResultFile(Option<File>);

impl ResultFile {
    fn create(path: Option<&Path>) -> Result<ResultFile> {
        path.map(create).transpose().map(ResultFile)
    }

    fn write(self, text: &str) -> Result<()> {
        self.0.map_or(Ok(()), |mut file| file.write_all(text.as_bytes()).map_err(write_error))
    }

    fn write_json(self, value: &serde_json::Value) -> Result<()> {
        self.write(&format!("{value:#}\n"))
    }
}

struct ResultFiles {
    json: ResultFile,
    csv: ResultFile,
    html: ResultFile,
    svg: Option<PathBuf>,
    prints_samples: bool,
}

impl ResultFiles {
    fn create(output: &OutputArguments) -> Result<ResultFiles> {
        let open = |path: &Option<PathBuf>| ResultFile::create(path.as_deref());
        let (csv, html, json) = (open(&output.csv)?, open(&output.html)?, open(&output.json)?);
        output.svg.iter().try_for_each(|dir| create_dir(dir))?;
        let svg = output.svg.clone();
        Ok(ResultFiles { json, csv, html, svg, prints_samples: output.sample })
    }

    /// Writes all results. Fails if a result cannot be written. Also fails if no request was
    /// answered, but only after the results are written.
    fn write(self, report: &Report) -> Result<()> {
        let mut value = report.json();
        value["command"] = command_line().into();
        self.json.write_json(&value)?;
        let name = report.servers.first().map_or("run", |server| server.short_name());
        let run = RunSummary::from_json(name, &value).map_err(Error::Local)?;
        write_page(&[run], self.html, self.svg.as_deref())?;
        self.csv.write(&report.csv())?;
        // The files are written first, because printing fails if the reader of the standard output
        // has exited.
        print_line(report.table().trim_end())?;
        print_line(report.histograms().trim_end())?;
        if self.prints_samples {
            print_line(report.samples().trim_end())?;
        }
        if report.answered() == 0 { Err(no_answers()) } else { Ok(()) }
    }
}

/// Returns the command line, quoted for a shell. The password of a user is replaced.
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

fn compare(files: &[PathBuf], html: Option<&Path>, svg: Option<&Path>) -> Result<()> {
    let runs = read_all(files, RunSummary::from_json)?;
    svg.map_or(Ok(()), create_dir)?;
    write_page(&runs, ResultFile::create(html)?, svg)
}

fn write_page(runs: &[RunSummary], html: ResultFile, svg: Option<&Path>) -> Result<()> {
    html.write(&page::run_page(runs))?;
    let Some(dir) = svg else { return Ok(()) };
    for figure in page::run_figures(runs) {
        ResultFile::create(Some(&dir.join(figure.file_name)))?.write(&figure.svg)?;
    }
    Ok(())
}

/// Reads JSON files. `parse` receives the name of each file without its extension, and the value.
fn read_all<T>(
    files: &[PathBuf],
    parse: impl Fn(&str, &serde_json::Value) -> std::result::Result<T, String>,
) -> Result<Vec<T>> {
    let read = |path: &PathBuf| {
        let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
        let value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        parse(&path.file_stem().unwrap_or_default().to_string_lossy(), &value)
    };
    let of = |path: &PathBuf, what| Error::Local(format!("{}: {what}", path.display()));
    files.iter().map(|path| read(path).map_err(|what: String| of(path, what))).collect()
}

fn create_dir(path: &Path) -> Result<()> {
    let of = |error| Error::Local(format!("{}: {error}", path.display()));
    fs::create_dir_all(path).map_err(of)
}

/// Runs experiments. A signal ends the running experiment. The reports of the experiments before it
/// are already written.
async fn run_experiments(arguments: &ExperimentArguments) -> Result<()> {
    let stop = Stop::at_signals()?;
    let progress = RefCell::new(progress_printer());
    let tell = move |line: &str| (*progress.borrow_mut())(line);
    experiment::run(arguments, tell, stop, &mut print_line).await
}

fn no_answers() -> Error {
    Error::Server("no request was answered".to_owned())
}

/// Runs the stub until the process is ended.
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

/// Reads a workload from a file, or returns a workload that ships with the program.
fn read(path: &Path) -> Result<Workload> {
    if let Some(shipped) = path.to_str().and_then(ShippedWorkload::named)
        && !path.exists()
    {
        return Workload::parse(shipped.text);
    }
    let of = |what: String| format!("{}: {what}", path.display());
    let text = fs::read_to_string(path).map_err(|error| {
        let names = workload::SHIPPED.map(|shipped| shipped.name).join(", ");
        Error::Local(of(format!("{error}; the workloads that ship with the program are {names}")))
    })?;
    Workload::parse(&text).map_err(|trouble| Error::Workload(of(trouble.to_string())))
}

fn create(path: &Path) -> Result<File> {
    File::create(path).map_err(|error| Error::Local(format!("{}: {error}", path.display())))
}

fn write_error(error: io::Error) -> Error {
    Error::Local(format!("cannot write the results: {error}"))
}

fn print_line(text: &str) -> Result<()> {
    writeln!(io::stdout(), "{text}").map_err(write_error)
}

/// Returns a function that prints progress. It prints nothing if the standard error is redirected,
/// so that a log contains only errors.
fn progress_printer() -> impl FnMut(&str) {
    let is_terminal = io::stderr().is_terminal();
    move |line| {
        if is_terminal {
            let _ = writeln!(io::stderr(), "{line}");
        }
    }
}

//! Logins beside gets and puts of another user: is a password checked under the lock of the batch?

use std::time::Duration;

use super::beside::{BESIDE, CALM, filled, phase, plot_of, probes, table_of_p99};
use super::charts::Column;
use super::check::Check;
use super::context::{Context, Subject, channel};
use super::findings::{Findings, Story};
use super::load::{Background, Phase, Repetition};
use super::measurements::{Measurements, quotient};
use crate::Result;
use crate::requests::Call;
use crate::servers::ClusterOptions;
use crate::users::{self, User};

const STORY: Story = Story {
    title: "Logins beside gets and puts",
    see: "Up to 3.4 a password is checked, which takes tens of milliseconds on purpose, with the \
          lock of the batch held: one core works, and all other requests of users wait for the \
          lock. From 3.5 on it is checked outside: then what others wait for is a core. In \
          clearlane the threads that check have a lower priority.",
    published: "On 16 cores, 16 to 18 logins per second with the check under the lock, and 200 \
                without.",
    source: "etcd pull request 11735, and its figures in issue 11826",
    differs: "On two cores no more than two passwords are checked at once, so there is no factor \
              of ten in the logins; what others wait meanwhile is the same story.",
};

/// So that the user of the gets and puts has a token before.
const DELAY: Duration = Duration::from_millis(300);

pub(super) async fn authenticate(context: &Context) -> Result<Findings> {
    let (clients, seconds) = (context.pick(20, 200), context.pick(4, 20));
    let probes = probes(seconds, 100, 50)?;
    let measure = async |subject: &Subject, seed: u64, into: &mut Measurements| {
        let options = ClusterOptions::default();
        let running = filled(context, subject, options, &[&probes], seed).await?;
        let (server, endpoint) = (subject.name(), running.endpoint());
        users::enable(channel(&endpoint).await?).await?;
        for name in [CALM, BESIDE] {
            let request = User::of_load().authenticate_request();
            let login = Call::new("/etcdserverpb.Auth/Authenticate", &request, None);
            let logins = vec![login; if name == BESIDE { clients } else { 0 }];
            let repetition = Repetition { delay: DELAY, ..Repetition::default() };
            let logins = Background::start(&endpoint, logins, repetition).await?;
            let (workload, user) = (&probes, Some(User::of_load()));
            let phase = Phase { user, ..phase(name, &endpoint, workload, seed) };
            phase.run(context, server, &running, into).await?;
            logins.end(&format!("{name}/logins"), server, into).await;
        }
        Ok(())
    };
    let subjects = context.programs(&["3.4", "3.5", "clearlane"])?;
    let measured = context.in_turns(&subjects, measure).await?;
    let more = [
        Column::median("logins per second", "beside/logins/per second"),
        Column::median("login p50, ms", "beside/logins/p50"),
    ];
    let shown = vec![
        table_of_p99(&measured, &["get", "put"], &more),
        plot_of(&measured, "get", "p99"),
        plot_of(&measured, "put", "p99"),
    ];
    let get = |server: &str| measured.median(server, "beside/get/p99");
    let checks = vec![
        Check::at_least(
            "get p99 beside logins, 3.4 over 3.5",
            quotient(get("3.4"), get("3.5")),
            3.0,
        ),
        Check::at_least(
            "get p99 beside logins, 3.4 over clearlane",
            quotient(get("3.4"), get("clearlane")),
            3.0,
        ),
    ];
    let setting = vec![format!(
        "One member with authentication on. 100 gets and 50 puts per second by a user with a \
         token, in an open loop for {seconds} s; beside them {clients} clients that log in again \
         and again with a password, bcrypt of cost 10."
    )];
    Ok(Findings { story: STORY, setting, shown, checks, measured })
}

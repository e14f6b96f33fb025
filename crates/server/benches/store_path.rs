//! The store path, side by side with `redis-benchmark`: checks a second through the engine against the same one-decision
//! script pipelined, latency at half of that, and what a refusal costs from the denied-cache and from Redis.
//!
//! Needs `redis-server` and `redis-benchmark`. Starts its own server, on loopback, and stops it. Machines are noisy, so
//! what is compared runs in turns, and the median of the turns counts:
//!
//! ```text
//! cargo bench -p apportion-server --bench store_path
//! ```

use apportion_core::fence::{Fence, Missing, Span};
use apportion_core::meter::{Part, Rule, Slack};
use apportion_core::policy::{Algorithm, Limits};
use apportion_core::schedule::{MICRO, PPB, Shares};
use apportion_core::{Attributes, Epoch, Key, Life, PolicySet, Record, Region, StoreMs};
use apportion_engine::{CheckRequest, DecidedBy};
use apportion_server::config::{OnEmpty, StoreUrl};
use apportion_server::node::{Node, Parts};
use apportion_server::store::AnyStore;
use apportion_store::{Charge, Decide, Mode, Op, RedisStore, Reply, Store};
use chaos::RedisServer;
use hdrhistogram::Histogram;
use std::error::Error;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Subjects in use, with names of 12 characters.
const SUBJECTS: u64 = 200_000;
const IN_FLIGHT: usize = 256;
const TURNS: usize = 5;
const TURN: Duration = Duration::from_secs(4);
const TIMEOUT: Duration = Duration::from_secs(1);
/// Units a minute for each subject: more than any is asked for, and a bucket as people have them.
const LIMIT: u64 = 6_000;

#[tokio::main]
async fn main() -> Outcome<()> {
    // `cargo test --benches` only asks whether it starts.
    if std::env::args().any(|arg| arg == "--test") {
        return Ok(());
    }
    let redis = RedisServer::start()?;
    let script = OneDecision::load(&redis.url()).await?;
    let one = Region1::start(&redis.url(), 1, true).await?;
    let (mut alone, mut batched) = (Vec::new(), Vec::new());
    for turn in 1..=TURNS {
        alone.push(redis_benchmark(&redis, &script)?);
        batched.push(one.saturated(TURN).await);
        say(format!(
            "turn {turn} of {TURNS}: redis-benchmark {:.0}/s, engine {:.0}/s",
            alone[turn - 1],
            batched[turn - 1]
        ));
    }
    let (alone, rate) = (median(alone), median(batched));
    // What redis-benchmark reads from stdin ends at the first zero byte, so its argument is escaped.
    let escaping = script.escaping;
    say(format!(
        "the escaped argument costs {:.1}% of the rate: without it redis-benchmark would see {:.0}/s",
        100.0 * (1.0 - 1.0 / escaping),
        alone * escaping
    ));
    let alone = alone * escaping;
    say(format!(
        "one policy, {IN_FLIGHT} in flight: engine {rate:.0}/s = {:.0}% of redis-benchmark -c 50 -P 16 at {alone:.0}/s",
        100.0 * rate / alone
    ));
    let unbatched = Region1::start(&redis.url(), 1, false).await?;
    let rate_alone = unbatched.saturated(TURN).await;
    say(format!("without batching: {rate_alone:.0}/s"));
    for policies in [4, 8] {
        let region = Region1::start(&redis.url(), policies, true).await?;
        say(format!(
            "{policies} policies a request: {:.0} requests/s",
            region.saturated(TURN).await
        ));
    }
    // Each at half of what it can do, and with batching also at what would be half without.
    for (name, region, rate) in [
        ("on", &one, rate / 2.0),
        ("on", &one, rate_alone / 2.0),
        ("off", &unbatched, rate_alone / 2.0),
    ] {
        let latency = region.at_rate(rate, 3 * TURN).await;
        say(format!(
            "at {rate:.0}/s, batching {name}: p50 {} us, p99 {} us, p99.9 {} us",
            latency.value_at_quantile(0.5),
            latency.value_at_quantile(0.99),
            latency.value_at_quantile(0.999),
        ));
    }
    one.refusals().await
}

#[expect(clippy::print_stdout, reason = "it is what a benchmark is for")]
fn say(line: String) {
    println!("{line}");
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

fn subject(n: u64) -> String {
    format!("s{n:011}")
}

// === redis-benchmark ===

/// Puts back the zero bytes of the last argument.
const UNESCAPE: &str =
    "ARGV[#ARGV] = string.gsub(ARGV[#ARGV], '\\1(.)', {['\\1'] = '\\1', ['\\2'] = '\\0'})\n";

/// An EVALSHA that decides one request.
struct OneDecision {
    /// All but the last argument.
    words: Vec<String>,
    /// The last, without zero bytes.
    escaped: Vec<u8>,
    /// How many times as many calls a second there would be without that.
    escaping: f64,
}

impl OneDecision {
    async fn load(url: &str) -> Outcome<Self> {
        let store = RedisStore::new(url, TIMEOUT, "bench")?;
        let command = one_decision(&store).await?;
        let (blob, words) = command.split_last().ok_or("there is a blob")?;
        let words: Result<Vec<String>, _> = words.iter().cloned().map(String::from_utf8).collect();
        let mut words = words?;
        let escaped: Vec<u8> = blob
            .iter()
            .flat_map(|byte| match byte {
                0 => vec![1, 2],
                1 => vec![1, 1],
                byte => vec![*byte],
            })
            .collect();
        let client = redis::Client::open(url)?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        let plain_words = words.clone();
        let script = store.decide_script().ok_or("the store isn't attached")?;
        words[1] = redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(format!("{UNESCAPE}{script}"))
            .query_async(&mut connection)
            .await?;
        let mut ratios = Vec::new();
        for _ in 0..TURNS {
            let plain = pipelined(&mut connection, &plain_words, blob).await?;
            let with_escapes = pipelined(&mut connection, &words, &escaped).await?;
            say(format!(
                "one pipelining client: {plain:.0}/s, with the argument escaped {with_escapes:.0}/s"
            ));
            ratios.push(plain / with_escapes);
        }
        Ok(Self {
            words,
            escaped,
            escaping: median(ratios),
        })
    }
}

/// Calls a second, with 800 on their way at a time, as redis-benchmark has them.
async fn pipelined(
    connection: &mut redis::aio::MultiplexedConnection,
    words: &[String],
    blob: &[u8],
) -> Outcome<f64> {
    let mut pipeline = redis::pipe();
    for _ in 0..800 {
        pipeline.cmd(&words[0]);
        for word in &words[1..] {
            pipeline.arg(word);
        }
        pipeline.arg(blob).ignore();
    }
    pipeline.exec_async(connection).await?;
    let (began, mut calls) = (Instant::now(), 0);
    while began.elapsed() < TURN / 4 {
        pipeline.exec_async(connection).await?;
        calls += 800;
    }
    Ok(f64::from(calls) / began.elapsed().as_secs_f64())
}

/// The arguments of an EVALSHA that decides one request, on a store of its own.
async fn one_decision(store: &RedisStore) -> Outcome<Vec<Vec<u8>>> {
    let Reply::Looked(looked) = store.one(Op::Look).await? else {
        return Err("it doesn't look".into());
    };
    let record = Record {
        life: Life::from_random(7),
        epoch: Epoch(1),
        revision: 1,
    };
    for op in [
        Op::PutState {
            expect: 0,
            value: vec![1],
        },
        Op::Adopt {
            state_version: 1,
            record,
        },
        Op::Attach {
            life: record.life,
            fingerprint: looked.fingerprint,
        },
    ] {
        store.one(op).await?;
    }
    // What redis-benchmark puts a number in for, which has 12 digits.
    let key = Key::parse("p0@1:__rand_int__").ok_or("it is a key")?;
    let decide = Decide {
        fence: Fence {
            record,
            span: Span {
                from: looked.now.minus(1_000),
                until: looked.now.plus(3_600_000),
            },
            epoch_began: looked.now,
            missing: Missing::Full,
            closed_before: StoreMs(0),
            replicated: false,
        },
        partition: key.partition(),
        id: 1,
        mode: Mode::Charge,
        charges: vec![Charge {
            key,
            rule: Arc::new(Rule {
                algorithm: Algorithm::TokenBucket { per_ms: 60_000 },
                limits: Limits::of(LIMIT),
                by_plan: false,
                fill_ms: 60_000,
                part: Part::Shares(Shares::constant(PPB)),
                slack: Slack::Nothing,
            }),
            cost: MICRO,
            units: 1,
            reserve_ppm: 0,
            denied: 0,
            usage_ms: None,
            shadow: false,
            newcomers_max: None,
            member: None,
        }],
        remember: None,
    };
    store
        .decide_command(&[decide])
        .ok_or_else(|| "the store isn't attached".into())
}

/// Requests a second.
fn redis_benchmark(redis: &RedisServer, script: &OneDecision) -> Outcome<f64> {
    let mut command = Command::new("redis-benchmark");
    command
        .args(["-h", &redis.addr().ip().to_string()])
        .args(["-p", &redis.addr().port().to_string()])
        .args(["-c", "50", "-P", "16", "-n", "200000", "--csv", "-x"])
        .args(["-r", &SUBJECTS.to_string()]);
    command.args(&script.words);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    child
        .stdin
        .take()
        .ok_or("it has a stdin")?
        .write_all(&script.escaped)?;
    let output = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let row = text.lines().last().unwrap_or_default();
    let rate = row
        .split("\",\"")
        .nth(1)
        .map(|field| field.trim_matches('"'));
    let rate = rate.and_then(|field| field.parse().ok());
    rate.ok_or_else(|| {
        let errors = String::from_utf8_lossy(&output.stderr);
        format!("redis-benchmark said {text:?} {errors:?}").into()
    })
}

// === the engine ===

/// One region of one node.
struct Region1 {
    node: Node,
    shutdown: CancellationToken,
}

impl Region1 {
    async fn start(url: &str, policies: usize, batching: bool) -> Outcome<Self> {
        let tables: String = (0..policies)
            .map(|i| {
                format!(
                    "[[policy]]\nname = \"p{i}\"\nmatch = {{ refuse = \"no\" }}\nkey = [\"tenant\"]\nalgorithm = \"token-bucket\"\n\
                     limit = {LIMIT}\nper = \"1m\"\n"
                )
            })
            .collect();
        let text = format!(
            "regions = [\"solo\"]\n{tables}[[policy]]\nname = \"refuses\"\nmatch = {{ refuse = \"yes\" }}\n\
             key = [\"tenant\"]\nalgorithm = \"fixed-window\"\nlimit = 1\nper = \"366d\"\n"
        );
        let policies = PolicySet::parse(&text, "bench").map_err(|error| error.to_string())?;
        let store = AnyStore::open(&StoreUrl::Redis(url.to_owned()), TIMEOUT)?;
        let store = if batching { store } else { store.unbatched() };
        let parts = Parts {
            region: Region::new("solo"),
            policies: Arc::new(policies),
            store,
            on_empty: OnEmpty::New,
            peers: Vec::new(),
            interval: Duration::from_secs(2),
            loan_term: Duration::from_secs(10),
            one_way_delay: Duration::ZERO,
        };
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let shutdown = CancellationToken::new();
        let (node, _running) =
            Node::start(parts, listener, &shutdown).map_err(|e| e.to_string())?;
        let begun = Instant::now();
        while node.check(request("no", 0)).await.is_err() {
            if begun.elapsed() > Duration::from_secs(20) {
                return Err(format!("the node can't decide: {:?}", node.misfit()).into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(Self { node, shutdown })
    }

    /// Checks a second with so many callers that never wait between two checks.
    async fn saturated(&self, time: Duration) -> f64 {
        let (stop, done) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let callers: Vec<_> = (0..IN_FLIGHT as u64)
            .map(|caller| {
                let (node, stop, done) = (self.node.clone(), stop.clone(), done.clone());
                tokio::spawn(async move {
                    let mut n = caller.wrapping_mul(0x9E37_79B9_7F4A_7C15);
                    while !stop.load(Ordering::Relaxed) {
                        n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let decision = node.check(request("no", (n >> 33) % SUBJECTS)).await;
                        assert!(decision.is_ok_and(|d| d.allowed));
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        tokio::time::sleep(time / 4).await;
        let (before, began) = (done.load(Ordering::Relaxed), Instant::now());
        tokio::time::sleep(time).await;
        let rate = (done.load(Ordering::Relaxed) - before) as f64 / began.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        for caller in callers {
            caller.await.expect("every check is admitted");
        }
        rate
    }

    /// Latency in microseconds, from the moment at which a request was due: one that had to wait for others is late.
    async fn at_rate(&self, rate: f64, time: Duration) -> Histogram<u64> {
        let mut latencies = Vec::new();
        let (began, count) = (Instant::now(), (rate * time.as_secs_f64()) as u64);
        let mut n = 1u64;
        let mut sent = 0;
        while sent < count {
            let due = (began.elapsed().as_secs_f64() * rate) as u64;
            while sent < due.min(count) {
                let due_at = began + Duration::from_secs_f64(sent as f64 / rate);
                n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let (node, request) = (self.node.clone(), request("no", (n >> 33) % SUBJECTS));
                latencies.push(tokio::spawn(async move {
                    let decided = node.check(request).await.is_ok_and(|d| d.allowed);
                    (decided, due_at.elapsed())
                }));
                sent += 1;
            }
            tokio::time::sleep(Duration::from_micros(500)).await;
        }
        let mut histogram = Histogram::new_with_bounds(1, 60_000_000, 3).expect("sound bounds");
        let mut undecided = 0;
        for latency in latencies {
            let (decided, latency) = latency.await.expect("no check panics");
            undecided += u64::from(!decided);
            let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
            histogram.saturating_record(micros);
        }
        if undecided > 0 {
            say(format!(
                "{undecided} of {count} weren't decided in time: the rate is too high"
            ));
        }
        histogram
    }

    /// One caller, one refusal after the other.
    async fn refusals(&self) -> Outcome<()> {
        self.node.check(request("yes", 0)).await?;
        self.node.check(request("yes", 0)).await?;
        let (mut cached, mut asked) = (Vec::new(), Vec::new());
        for _ in 0..TURNS {
            cached.push(self.refused(DecidedBy::DeniedCache, 200_000, None).await?);
            // Whoever names a request is answered by the store.
            asked.push(self.refused(DecidedBy::Store, 10_000, Some("r")).await?);
        }
        let (cached, asked) = (median(cached), median(asked));
        say(format!(
            "a refusal: {cached:.2} us from the denied-cache, {asked:.2} us from Redis: {:.0} times cheaper",
            asked / cached
        ));
        Ok(())
    }

    /// Microseconds a refusal.
    async fn refused(&self, by: DecidedBy, times: u32, id: Option<&str>) -> Outcome<f64> {
        let began = Instant::now();
        for _ in 0..times {
            let request = CheckRequest {
                request_id: id.map(str::to_owned),
                ..request("yes", 0)
            };
            let decision = self.node.check(request).await?;
            if decision.allowed || decision.limits[0].decided_by != by {
                return Err(format!("expected a refusal by {by:?}: {decision:?}").into());
            }
        }
        Ok(began.elapsed().as_secs_f64() * 1e6 / f64::from(times))
    }
}

impl Drop for Region1 {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

fn request(refuse: &str, n: u64) -> CheckRequest {
    CheckRequest {
        attributes: Attributes::from([
            ("refuse".to_owned(), refuse.to_owned()),
            ("tenant".to_owned(), subject(n)),
        ]),
        cost: 1,
        priority: None,
        request_id: None,
        peek: false,
    }
}

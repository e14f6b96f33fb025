//! Requests at given times, whatever becomes of the ones before.

use crate::api::Api;
use crate::history::History;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A stream of requests to one region.
#[derive(Debug, Clone)]
pub struct Traffic {
    pub region: String,
    pub attributes: Vec<(String, String)>,
    pub cost: u64,
    pub requests: usize,
    /// When the first one comes.
    pub after: Duration,
    /// Evenly spread; zero: all at once, as far as `workers` go.
    pub over: Duration,
    /// Requests that may be on their way at the same time.
    pub workers: usize,
}

// === impl Traffic ===

impl Traffic {
    pub fn new(region: &str, attributes: &[(&str, &str)], requests: usize, over: Duration) -> Self {
        Self {
            region: region.to_owned(),
            attributes: attributes
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            cost: 1,
            requests,
            after: Duration::ZERO,
            over,
            workers: 4,
        }
    }

    #[must_use]
    pub fn after(mut self, after: Duration) -> Self {
        self.after = after;
        self
    }

    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }
}

/// Sends all of `traffic`, side by side, and returns with the last answer.
///
/// # Panics
/// Where a region isn't one of the deployment.
pub fn drive(api: &Api, history: &History, traffic: &[Traffic]) {
    drive_until(api, history, traffic, &AtomicBool::new(false));
}

/// As [`drive`], and leaves off early once `stop` is set.
///
/// # Panics
/// Where a region isn't one of the deployment.
pub fn drive_until(api: &Api, history: &History, traffic: &[Traffic], stop: &AtomicBool) {
    let began = Instant::now();
    let sent: Vec<AtomicUsize> = traffic.iter().map(|_| AtomicUsize::new(0)).collect();
    thread::scope(|scope| {
        for (traffic, sent) in traffic.iter().zip(&sent) {
            for _ in 0..traffic.workers.min(traffic.requests) {
                scope.spawn(|| work(api, history, traffic, sent, began, stop));
            }
        }
    });
}

fn work(
    api: &Api,
    history: &History,
    traffic: &Traffic,
    sent: &AtomicUsize,
    began: Instant,
    stop: &AtomicBool,
) {
    let attributes: Vec<(&str, &str)> = traffic
        .attributes
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    loop {
        let i = sent.fetch_add(1, Ordering::Relaxed);
        if i >= traffic.requests || stop.load(Ordering::Relaxed) {
            return;
        }
        let due = traffic.over.as_secs_f64() * i as f64 / traffic.requests as f64;
        let due = began + traffic.after + Duration::from_secs_f64(due);
        thread::sleep(due.duration_since(Instant::now()));
        let at = Instant::now();
        let answer = api
            .check(&traffic.region, &attributes, traffic.cost)
            .expect("traffic goes to regions that exist");
        history.note(&traffic.region, traffic.cost, at, &answer);
    }
}

/// Asks every region in turn, one request each, until `enough` says so or `limit` is over. For a budget that is to be
/// used to its last unit: every refusal is a demand that makes a share move.
pub fn ask_on(
    api: &Api,
    history: &History,
    attributes: &[(&str, &str)],
    pause: Duration,
    limit: Duration,
    enough: impl Fn(&History) -> bool,
) {
    let deadline = Instant::now() + limit;
    while !enough(history) && Instant::now() < deadline {
        for region in api.regions() {
            let at = Instant::now();
            if let Ok(answer) = api.check(&region, attributes, 1) {
                history.note(&region, 1, at, &answer);
            }
        }
        thread::sleep(pause);
    }
}

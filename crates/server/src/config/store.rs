//! The `[store]` table. Its URL may hold a password, so no message repeats it.

use super::{OnEmpty, Replicas, Stated, StoreConfig, StoreUrl, has_host_and_port, read_duration};
use apportion_core::StoreMs;
use apportion_core::policy::source::{Field, Table, did_you_mean, quote};
use axum::http::Uri;
use std::fmt;
use std::ops::RangeInclusive;

const TIMEOUT_MS: RangeInclusive<u64> = 1..=10_000;
const REPLICAS: RangeInclusive<u64> = 0..=8;
const MAX_LAG_MS: RangeInclusive<u64> = 1_000..=60_000;

pub(super) fn read_store(
    root: &Table<'_>,
    alone: bool,
    warnings: &mut Vec<String>,
) -> Option<StoreConfig> {
    let store = root
        .required("store", "a [store] table with url")?
        .table("a table with url")?;
    store.only(&[
        "url",
        "timeout",
        "on_empty",
        "replicas",
        "replica_max_lag",
        "stated",
    ]);
    let url = read_store_url(&store);
    let timeout = read_duration(&store, "timeout", TIMEOUT_MS, StoreConfig::DEFAULT_TIMEOUT);
    let on_empty = match (store.get("on_empty"), &url) {
        (Some(field), _) => read_on_empty(&field),
        (None, Some(StoreUrl::Memory)) => {
            warnings.push(
                "store.on_empty is left out and the store is memory: every start of this node counts as the first, \
                 and what was spent before it is forgotten"
                    .to_owned(),
            );
            Some(OnEmpty::New)
        }
        (None, _) if alone => {
            warnings.push(
                "store.on_empty is left out and this region has no peer to ask: an empty store counts as new, so if \
                 it lost its data, spent budgets are full again"
                    .to_owned(),
            );
            Some(OnEmpty::New)
        }
        (None, _) => Some(OnEmpty::Ask),
    };
    let replicas = read_replicas(&store, url.as_ref());
    Some(StoreConfig {
        url: url?,
        timeout: timeout?,
        on_empty: on_empty?,
        replicas: replicas?,
    })
}

fn read_replicas(store: &Table<'_>, url: Option<&StoreUrl>) -> Option<Replicas> {
    let count = match store.get("replicas") {
        Some(field) => field.integer(REPLICAS).and_then(|n| n.try_into().ok()),
        None => Some(0),
    };
    let default = StoreConfig::DEFAULT_REPLICA_MAX_LAG;
    let max_lag = read_duration(store, "replica_max_lag", MAX_LAG_MS, default);
    let stated = read_stated(store);
    let (count, max_lag, stated) = (count?, max_lag?, stated?);
    if let Some(field) = store.get("replica_max_lag")
        && !max_lag.as_millis().is_multiple_of(1_000)
    {
        field.wrong(
            "Redis counts lags in whole seconds",
            "whole seconds, such as \"10s\"",
        );
        return None;
    }
    for (name, is_said) in [
        ("replicas", count > 0),
        ("stated", stated != Stated::default()),
    ] {
        if let (Some(StoreUrl::Memory), true, Some(field)) = (url, is_said, store.get(name)) {
            field.wrong(
                "an embedded store is no Redis",
                "this for a redis:// store alone",
            );
            return None;
        }
    }
    Some(Replicas {
        count,
        max_lag,
        stated,
    })
}

/// What isn't said is asked of the server.
fn read_stated(store: &Table<'_>) -> Option<Stated> {
    const NAMES: [&str; 3] = [
        "maxmemory_policy",
        "min_replicas_to_write",
        "min_replicas_max_lag",
    ];
    const EXPECTED: &str =
        "a table with maxmemory_policy, min_replicas_to_write or min_replicas_max_lag";
    let Some(field) = store.get("stated") else {
        return Some(Stated::default());
    };
    let table = field.table(EXPECTED)?;
    table.only(&NAMES);
    let [policy, least, lag] = NAMES.map(|name| table.get(name));
    let policy = match policy {
        Some(field) => {
            const NOEVICTION: &str = "\"noeviction\"";
            Some(field.choice(&[("noeviction", "noeviction".to_owned())], NOEVICTION)?)
        }
        None => None,
    };
    let least = match least {
        Some(field) => Some(field.integer(REPLICAS)?),
        None => None,
    };
    let lag = match lag {
        Some(_) => {
            let default = StoreConfig::DEFAULT_REPLICA_MAX_LAG;
            Some(read_duration(
                &table,
                "min_replicas_max_lag",
                MAX_LAG_MS,
                default,
            )?)
        }
        None => None,
    };
    Some(Stated {
        maxmemory_policy: policy,
        min_replicas_to_write: least.and_then(|n| n.try_into().ok()),
        min_replicas_max_lag: lag,
    })
}

fn read_store_url(store: &Table<'_>) -> Option<StoreUrl> {
    const EXPECTED: &str = "\"memory:\" or \"redis://host:port\"";
    const LATER: [&str; 3] = ["rediss", "redis+cluster", "redis+sentinel"];
    let field = store.required("url", EXPECTED)?;
    let text = field.text(EXPECTED)?;
    if text == "memory:" {
        return Some(StoreUrl::Memory);
    }
    let Some((scheme, _)) = text.split_once("://") else {
        // What follows could be a password: it isn't repeated.
        field.wrong("no such kind of store", EXPECTED);
        return None;
    };
    if LATER.contains(&scheme) {
        field.wrong(format!("{scheme}:// is not supported yet"), EXPECTED);
        return None;
    }
    if scheme != "redis" {
        let hint = did_you_mean(scheme, ["redis"]);
        field.wrong(
            format!("{} is no kind of store{hint}", quote(scheme)),
            EXPECTED,
        );
        return None;
    }
    if !is_redis_url(text) {
        const FORM: &str = "redis://[user:password@]host[:port][/database]";
        field.wrong("not a URL of the form that is understood", FORM);
        return None;
    }
    Some(StoreUrl::Redis(text.to_owned()))
}

fn is_redis_url(text: &str) -> bool {
    let Ok(uri) = text.parse::<Uri>() else {
        return false;
    };
    let database = uri.path().trim_start_matches('/');
    has_host_and_port(&uri)
        && uri.query().is_none()
        && (database.is_empty() || database.parse::<u16>().is_ok())
}

fn read_on_empty(field: &Field<'_>) -> Option<OnEmpty> {
    const EXPECTED: &str = "\"ask\", \"lost\" or { new_until = \"2026-12-31T00:00:00Z\" }";
    if !field.is_table() {
        return field.choice(&[("ask", OnEmpty::Ask), ("lost", OnEmpty::Lost)], EXPECTED);
    }
    const TIME: &str = "a time with its offset, such as \"2026-12-31T00:00:00Z\"";
    let table = field.table(EXPECTED)?;
    table.only(&["new_until"]);
    let field = table.required("new_until", TIME)?;
    let text = field.text_of_time(TIME)?;
    let time = text.parse::<jiff::Timestamp>().ok();
    let ms = time.and_then(|time| u64::try_from(time.as_millisecond()).ok());
    if ms.is_none() {
        field.wrong(format!("{} is no such time", quote(&text)), TIME);
    }
    ms.map(|ms| OnEmpty::NewUntil(StoreMs(ms)))
}

// === impl StoreUrl ===

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::Redis(url) => match url.rsplit_once('@') {
                Some((_, rest)) => write!(f, "redis://***@{rest}"),
                None => f.write_str(url),
            },
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

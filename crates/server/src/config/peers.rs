//! The `[[peers]]` tables, and whether they fit the policies.

use super::{Listen, Peer, has_host_and_port};
use apportion_core::policy::source::{Field, Table, any_of, did_you_mean, quote};
use apportion_core::policy::{limits, region_name};
use apportion_core::{PolicySet, Region};
use axum::http::Uri;
use std::collections::HashMap;

/// Each with the field that names it.
pub(super) fn read_peers<'r>(
    root: &Table<'r>,
    own: Option<&Region>,
    listen: Option<&Listen>,
) -> Option<Vec<(Field<'r>, Peer)>> {
    const EXPECTED: &str = "[[peers]] tables with region and sync";
    let Some(field) = root.get("peers") else {
        return Some(Vec::new());
    };
    let items = field.items(EXPECTED)?;
    if items.len() >= limits::MAX_REGIONS {
        let expected = format!("at most {}", limits::MAX_REGIONS - 1);
        field.wrong(format!("{} peers", items.len()), expected);
        return None;
    }
    let mut lines_of_regions = HashMap::new();
    let mut lines_of_urls = HashMap::new();
    let peers: Vec<_> = items
        .iter()
        .map(|item| {
            let table = item.table(EXPECTED)?;
            table.only(&["region", "sync"]);
            let sync = read_peer_url(&table, listen);
            if let Some((field, url)) = &sync
                && let Some(line) = lines_of_urls.insert(url.clone(), field.line())
            {
                field.wrong(
                    format!("{url} is listed on line {line} as well"),
                    "each peer's own address",
                );
            }
            let field = table.required("region", "the name of the peer's region")?;
            let region = region_name(&field)?;
            let name = region.as_str();
            if Some(&region) == own {
                field.wrong(
                    format!("{name:?} is this region itself"),
                    "a peer in another region",
                );
            }
            if let Some(line) = lines_of_regions.insert(region.clone(), field.line()) {
                field.wrong(
                    format!("{name:?} is listed on line {line} as well"),
                    "each peer once",
                );
            }
            let (_, sync) = sync?;
            Some((field, Peer { region, sync }))
        })
        .collect();
    peers.into_iter().collect()
}

/// A peer's address and the field that gives it.
fn read_peer_url<'r>(peer: &Table<'r>, listen: Option<&Listen>) -> Option<(Field<'r>, String)> {
    const EXPECTED: &str = "the peer's sync address, such as \"http://127.0.0.1:7302\"";
    let field = peer.required("sync", EXPECTED)?;
    let text = field.text(EXPECTED)?;
    let uri = text.parse::<Uri>().ok();
    if uri.as_ref().and_then(Uri::scheme_str) == Some("https") {
        field.wrong("https:// is not supported yet", EXPECTED);
        return None;
    }
    let is_plain = |uri: &Uri| {
        uri.scheme_str() == Some("http")
            && uri.port().is_some()
            && has_host_and_port(uri)
            && uri.authority().is_some_and(|a| !a.as_str().contains('@'))
            && uri.path() == "/"
            && uri.query().is_none()
    };
    let Some(authority) = uri
        .filter(is_plain)
        .and_then(|uri| uri.authority().cloned())
    else {
        field.wrong(
            format!("{} is not of the form http://host:port", quote(text)),
            EXPECTED,
        );
        return None;
    };
    let own = listen.map(|listen| listen.sync);
    if own.is_some() && authority.as_str().parse().ok() == own {
        field.wrong(
            format!("{} is where this region itself listens", quote(text)),
            EXPECTED,
        );
    }
    Some((field, format!("http://{authority}")))
}

/// This region and its peers are exactly those that the policies deal shares to.
pub(super) fn compare_regions(
    root: &Table<'_>,
    own: &Field<'_>,
    region: &Region,
    peers: &[(Field<'_>, Peer)],
    set: &PolicySet,
) {
    let listed = || any_of(set.regions.iter().map(Region::as_str));
    let refuse_a_stranger = |field: &Field<'_>, region: &Region| {
        if !set.regions.contains(region) {
            let name = region.as_str();
            let hint = did_you_mean(name, set.regions.iter().map(Region::as_str));
            field.wrong(
                format!("{name:?} is not one of the policies' regions{hint}"),
                listed(),
            );
        }
    };
    refuse_a_stranger(own, region);
    for (field, peer) in peers {
        refuse_a_stranger(field, &peer.region);
    }
    let missing: Vec<_> = set
        .regions
        .iter()
        .filter(|listed| *listed != region && !peers.iter().any(|(_, p)| p.region == **listed))
        .map(Region::as_str)
        .collect();
    if !missing.is_empty() {
        let what = format!("no peer for {}", missing.join(", "));
        const EXPECTED: &str = "a [[peers]] table for every other one of the policies' regions";
        match root.get("peers") {
            Some(field) => field.wrong(what, EXPECTED),
            None => root.wrong(format!("peers: {what}"), EXPECTED),
        }
    }
}

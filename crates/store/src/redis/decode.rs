//! Redis' answers as replies. All of it is outside data: what can't be read is an error that names its key.

use super::encode::{Names, fence_of, suffix, usage_name};
use super::pack::{self, Beside, Reader};
use super::text;
use crate::StoreError;
use crate::op::*;
use ::redis::{ServerErrorKind, Value};
use apportion_core::fence::Fence;
use apportion_core::{Key, Partition, StoreMs};

/// How many answers an operation has.
pub(super) fn answers(op: &Op) -> usize {
    match op {
        Op::Look => 5,
        Op::Sweep { .. } => 256,
        _ => 1,
    }
}

/// The reply to `op` from its answers.
pub(super) fn reply(op: &Op, names: &Names, answers: &mut [Value]) -> Result<Reply, StoreError> {
    if let Op::Look = op {
        return looked(names, executed(answers)?);
    }
    if let Op::Sweep { fence, readers, .. } = op {
        return swept(fence, readers.len(), names, answers);
    }
    let [answer] = answers else {
        return Err(unreadable("one answer"));
    };
    let answer = std::mem::take(answer);
    if let Op::Marks { life } = op {
        return marks(&names.marks(*life), accepted(answer)?);
    }
    if let Op::Decide(decide) = op {
        let mut decided = decides(names, &[decide], &[Ok(())], answer);
        return decided
            .pop()
            .unwrap_or_else(|| Err(unreadable("of one decision")));
    }
    let mut row = script_row(op, names, answer)?.into_iter();
    match op {
        Op::PutState { .. } => Ok(Reply::Put(number(row.next())?)),
        Op::Adopt { .. } | Op::Mark { .. } | Op::Ack { .. } | Op::Merge { .. } => Ok(Reply::Done),
        Op::Lease { .. } => Ok(Reply::Held(flag(row.next())?)),
        Op::EndHolds(_) => Ok(Reply::Ended(
            row.map(|ended| flag(Some(ended)))
                .collect::<Result<_, _>>()?,
        )),
        Op::Read { ids, .. } => snapshots(op, names, ids, row),
        Op::Swap(_) => Ok(Reply::Swapped(number(row.next())?)),
        Op::Traded { .. } => traded(&name_of(op, names, "X", ""), row).map(Reply::Traded),
        Op::Hear { .. } => Ok(Reply::Heard(
            row.map(|beyond| number(Some(beyond)))
                .collect::<Result<_, _>>()?,
        )),
        Op::Feed { .. } => feed(&name_of(op, names, "F", ""), row).map(Reply::Feed),
        Op::Usage { key, starts, .. } => {
            let now = StoreMs(number(row.next())?);
            let periods = starts.iter().zip(row).map(|(start, slots)| {
                let place = name_of(op, names, "U", &usage_name(key, *start));
                slots_of(&place, slots)
            });
            let periods = periods.collect::<Result<_, _>>()?;
            Ok(Reply::Usage { now, periods })
        }
        Op::Look | Op::Attach { .. } | Op::Marks { .. } | Op::Decide(_) | Op::Sweep { .. } => {
            Err(unreadable("a script's answer"))
        }
    }
}

// === errors ===

/// It may have been executed, but what it answered says nothing.
fn unreadable(expected: &str) -> StoreError {
    StoreError::Unknown(format!("the store's answer isn't {expected}"))
}

fn garbage(key: &str) -> StoreError {
    StoreError::Rejected(format!("unreadable value in {key}"))
}

/// The answer, unless it is an error.
pub(super) fn accepted(answer: Value) -> Result<Value, StoreError> {
    match answer {
        Value::ServerError(error) if error.kind() == Some(ServerErrorKind::NoScript) => {
            Err(StoreError::LookAgain)
        }
        Value::ServerError(error) => Err(StoreError::Rejected(match error.details() {
            Some(details) => format!("{} {details}", error.code()),
            None => error.code().into(),
        })),
        answer => Ok(answer),
    }
}

/// The answers inside a transaction.
pub(super) fn executed(answers: &mut [Value]) -> Result<Vec<Value>, StoreError> {
    for answer in answers.iter_mut() {
        let inner = match accepted(std::mem::take(answer))? {
            Value::Array(inner) => inner,
            _ => continue,
        };
        return inner.into_iter().map(accepted).collect();
    }
    Err(StoreError::Rejected("the transaction was dropped".into()))
}

/// What a script answered after its status.
fn script_row(op: &Op, names: &Names, answer: Value) -> Result<Vec<Value>, StoreError> {
    let Value::Array(mut row) = accepted(answer)? else {
        return Err(unreadable("a row"));
    };
    if row.is_empty() {
        return Err(unreadable("a row with a status"));
    }
    let status = string(&row.remove(0)).unwrap_or_default();
    match status.as_str() {
        "ok" => Ok(row),
        "fenced" => Err(match row.first().and_then(string) {
            None => StoreError::Fenced(None),
            Some(found) => match (text::parse_record(&found), fence_of(op)) {
                (Some(record), _) => StoreError::Fenced(Some(record)),
                (None, Some((_, partition))) => garbage(&names.record(partition)),
                (None, None) => unreadable("of a fenced operation"),
            },
        }),
        "conflict" => Err(StoreError::Conflict),
        "guard" => Err(StoreError::Guard),
        "outside" => Err(StoreError::OutOfSpan),
        "rejected" => Err(StoreError::Rejected(
            row.first().and_then(string).unwrap_or_default(),
        )),
        _ => Err(unreadable("a status that is known")),
    }
}

// === parts ===

/// The key in `op`'s partition and life, for saying where something unreadable stands.
fn name_of(op: &Op, names: &Names, kind: &str, rest: &str) -> String {
    match fence_of(op) {
        Some((fence, partition)) => names.of(partition, fence.record.life, kind, rest),
        None => format!("{kind}{rest}"),
    }
}

pub(super) fn string(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.clone()),
        Value::Int(n) => Some(n.to_string()),
        _ => None,
    }
}

fn number(value: Option<Value>) -> Result<u64, StoreError> {
    value
        .as_ref()
        .and_then(string)
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| unreadable("a number"))
}

fn flag(value: Option<Value>) -> Result<bool, StoreError> {
    number(value).map(|n| n == 1)
}

/// The fields of a hash, as the second and the third version of the protocol give them.
fn pairs(value: Value) -> Option<Vec<(String, Value)>> {
    match value {
        Value::Map(map) => map
            .into_iter()
            .map(|(field, value)| Some((string(&field)?, value)))
            .collect(),
        Value::Array(flat) => {
            let mut flat = flat.into_iter();
            let mut found = Vec::with_capacity(flat.len() / 2);
            while let Some(field) = flat.next() {
                found.push((string(&field)?, flat.next()?));
            }
            Some(found)
        }
        _ => None,
    }
}

/// `key`, or `key#label`, the label with leading zeros.
fn meter_id(member: &str) -> Option<MeterId> {
    let (key, label) = match member.split_once('#') {
        Some((key, label)) => (key, Some(label.parse().ok()?)),
        None => (member, None),
    };
    let key = Key::parse(key)?;
    Some(MeterId { key, label })
}

// === replies ===

/// What the server is: the process, and the history of its data.
pub(super) fn fingerprint(info: &str) -> Option<String> {
    let run_id = info_field(info, "run_id")?;
    let history = info_field(info, "master_replid")?;
    Some(format!("{run_id}:{history}"))
}

pub(super) fn info_field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
}

/// What the server says of the processes that it shares its data with.
fn replication(info: &str) -> Option<Replication> {
    const NONE: &str = "0000000000000000000000000000000000000000";
    let lag_ms = |line: &str| {
        let (name, fields) = line.split_once(':')?;
        name.strip_prefix("slave")?.parse::<u32>().ok()?;
        let field = |name: &str| {
            let mut fields = fields.trim().split(',');
            fields.find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
        };
        let lag_s: u64 = field("lag")?.parse().ok()?;
        (field("state")? == "online").then_some(lag_s.saturating_mul(1_000))
    };
    Some(Replication {
        is_master: info_field(info, "role")? == "master",
        was_promoted: info_field(info, "master_replid2").is_some_and(|id| id != NONE),
        replicas: info_field(info, "connected_slaves")?.parse().ok()?,
        lags_ms: info.lines().filter_map(lag_ms).collect(),
    })
}

fn looked(names: &Names, inner: Vec<Value>) -> Result<Reply, StoreError> {
    let [time, info, state] = <[Value; 3]>::try_from(inner)
        .map_err(|_| StoreError::Rejected("a look has three parts".into()))?;
    let now = match &time {
        Value::Array(parts) => {
            let mut parts = parts.iter().map(|p| string(p)?.parse::<u64>().ok());
            let (seconds, micros) = (parts.next().flatten(), parts.next().flatten());
            seconds.zip(micros).map(|(s, us)| s * 1_000 + us / 1_000)
        }
        time => string(time).and_then(|t| t.parse().ok()),
    };
    let now = now.ok_or_else(|| StoreError::Rejected("unreadable TIME".into()))?;
    let fingerprint = string(&info)
        .and_then(|info| fingerprint(&info))
        .ok_or_else(|| StoreError::Rejected("INFO has no run_id or no master_replid".into()))?;
    let replication = string(&info).and_then(|info| replication(&info));
    let replication = replication
        .ok_or_else(|| StoreError::Rejected("INFO has no readable replication".into()))?;
    let unreadable_state = || garbage(&names.state());
    let Value::Array(fields) = state else {
        return Err(unreadable_state());
    };
    let state = match <[Value; 2]>::try_from(fields) {
        Ok([Value::Nil, Value::Nil]) => None,
        Ok([version, Value::BulkString(value)]) => {
            let version = string(&version).and_then(|v| v.parse().ok());
            Some((version.ok_or_else(unreadable_state)?, value))
        }
        _ => return Err(unreadable_state()),
    };
    Ok(Reply::Looked(Looked {
        now: StoreMs(now),
        fingerprint,
        replication,
        overlap_ms: 0,
        state,
    }))
}

fn marks(name: &str, value: Value) -> Result<Reply, StoreError> {
    let marks = pairs(value).and_then(|pairs| {
        pairs
            .into_iter()
            .map(|(actor, through)| {
                let through = string(&through)?.parse().ok()?;
                Some((text::parse_actor(&actor)?, StoreMs(through)))
            })
            .collect::<Option<Vec<_>>>()
    });
    let mut marks = marks.ok_or_else(|| garbage(name))?;
    marks.sort_unstable();
    Ok(Reply::Marks(marks))
}

/// The replies to decisions that shared a command; those that weren't sent have said why already.
pub(super) fn decides(
    names: &Names,
    decides: &[&Decide],
    sent: &[Result<(), StoreError>],
    answer: Value,
) -> Vec<Result<Reply, StoreError>> {
    let answer = match accepted(answer) {
        Ok(Value::BulkString(bytes)) => Ok(bytes),
        Ok(_) => Err(unreadable("a batch of decisions")),
        Err(error) => Err(error),
    };
    let begun = answer.as_deref().map_err(Clone::clone).and_then(|bytes| {
        let mut reader = Reader::new(bytes);
        let now = reader.array_len().and_then(|_| reader.count());
        now.map(|now| (StoreMs(now), reader))
            .ok_or_else(|| unreadable("a batch of decisions"))
    });
    let mut rest = begun;
    let each = decides.iter().zip(sent).map(|(decide, sent)| {
        sent.clone()?;
        let (now, mut reader) = rest.clone()?;
        let reply = decided(names, decide, now, &mut reader);
        // After one that can't be read nothing is where it seems to be.
        rest = match reply {
            Some(_) => Ok((now, reader)),
            None => Err(unreadable("a batch of decisions")),
        };
        reply.unwrap_or_else(|| Err(unreadable("a decision")))
    });
    each.collect()
}

/// `None` where it can't be read.
fn decided(
    names: &Names,
    decide: &Decide,
    now: StoreMs,
    reader: &mut Reader<'_>,
) -> Option<Result<Reply, StoreError>> {
    Some(match reader.count()? {
        0 => Ok(Reply::Decided(answers_of(decide, now, None, reader)?)),
        1 => {
            let kept = reader.bytes()?;
            match replayed(decide, kept) {
                Some(decided) => Ok(Reply::Decided(decided)),
                None => Err(StoreError::Rejected(
                    "unreadable value of a request id".into(),
                )),
            }
        }
        2 => Err(match reader.text_or_none()? {
            None => StoreError::Fenced(None),
            Some(found) => match text::parse_record(found) {
                Some(record) => StoreError::Fenced(Some(record)),
                None => garbage(&names.record(decide.partition)),
            },
        }),
        3 => Err(StoreError::RequestIdReused),
        4 => Err(StoreError::Rejected(
            String::from_utf8_lossy(reader.bytes()?).into_owned(),
        )),
        5 => Err(StoreError::OutOfSpan),
        _ => return None,
    })
}

/// The content's 16 bytes; and then an array of when it was, what is kept beside it, and what it answered.
fn replayed(decide: &Decide, kept: &[u8]) -> Option<Decided> {
    let mut reader = Reader::new(kept.get(16..)?);
    reader.array_len()?;
    let now = StoreMs(reader.count()?);
    let others = reader.bytes()?.to_vec();
    answers_of(decide, now, Some(others), &mut reader)
}

fn answers_of(
    decide: &Decide,
    now: StoreMs,
    replayed: Option<Vec<u8>>,
    reader: &mut Reader<'_>,
) -> Option<Decided> {
    let admitted = reader.count()? == 1;
    let number = usize::try_from(reader.count()?).ok()?;
    if replayed.is_none() && number != decide.charges.len() {
        return None;
    }
    let answers = (0..number).map(|_| reader.answer());
    Some(Decided {
        now,
        admitted,
        answers: answers.collect::<Option<_>>()?,
        replayed,
    })
}

fn snapshots(
    op: &Op,
    names: &Names,
    ids: &[MeterId],
    mut row: impl Iterator<Item = Value>,
) -> Result<Reply, StoreError> {
    let now = StoreMs(number(row.next())?);
    let mut snapshots = Vec::with_capacity(ids.len());
    for id in ids {
        let parts = [(); 6].map(|()| row.next());
        let [
            Some(meter),
            Some(list),
            Some(set),
            Some(units),
            deadline,
            Some(traded),
        ] = parts
        else {
            return Err(unreadable("a snapshot of each meter"));
        };
        let place = |kind| name_of(op, names, kind, &suffix(id));
        let meter = match meter {
            Value::Nil => None,
            meter => {
                let deadline = StoreMs(number(deadline)?);
                let beside =
                    beside(list, set, units, deadline).ok_or_else(|| garbage(&place("")))?;
                let bytes = bytes(meter).unwrap_or_default();
                let meter = pack::parse_meter(&bytes, &beside);
                Some(meter.ok_or_else(|| garbage(&place("")))?)
            }
        };
        let traded = traded_of(traded).ok_or_else(|| garbage(&place("T")))?;
        snapshots.push(Snapshot { meter, traded });
    }
    Ok(Reply::Snapshots { now, snapshots })
}

fn bytes(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}

/// A log's list; the ids of slots with their ends; units by id.
fn beside(list: Value, set: Value, units: Value, deadline: StoreMs) -> Option<Beside> {
    let number = |value: &Value| string(value)?.parse::<u64>().ok();
    let Value::Array(list) = list else {
        return None;
    };
    let ends = pairs(set)?.into_iter();
    let units = pairs(units)?.into_iter();
    Some(Beside {
        deadline,
        list: list.into_iter().map(bytes).collect::<Option<_>>()?,
        slots: ends
            .map(|(id, end)| Some((id.parse().ok()?, StoreMs(number(&end)?))))
            .collect::<Option<_>>()?,
        units: units
            .map(|(id, units)| Some((id.parse().ok()?, number(&units)?)))
            .collect::<Option<_>>()?,
    })
}

/// The fields `v`, `s`, `a` and `n`: version, terms, allotment and attempts. `None` inside: there are none.
fn traded_of(fields: Value) -> Option<Option<Traded>> {
    let Value::Array(fields) = fields else {
        return None;
    };
    let fields = <[Value; 4]>::try_from(fields).ok()?;
    if fields.iter().all(|field| *field == Value::Nil) {
        return Some(None);
    }
    let [version, terms, allotment, attempts] = fields;
    let count = |value: Value| match value {
        Value::Nil => Some(0),
        value => string(&value)?.parse().ok(),
    };
    let terms = match terms {
        Value::Nil => None,
        terms => Some(pack::parse_terms(&bytes(terms)?)?),
    };
    let allotment = match allotment {
        Value::Nil => Vec::new(),
        Value::BulkString(bytes) => bytes,
        _ => return None,
    };
    Some(Some(Traded {
        version: count(version)?,
        terms,
        allotment,
        attempts: count(attempts)?,
    }))
}

/// One answer for each partition: the moment, the traded meters, and a page for each reader.
fn swept(
    fence: &Fence,
    readers: usize,
    names: &Names,
    answers: &mut [Value],
) -> Result<Reply, StoreError> {
    if answers.len() != 256 {
        return Err(unreadable("one for each partition"));
    }
    let mut swept = Swept {
        now: StoreMs::MAX,
        traded: Vec::new(),
        pages: vec![Vec::new(); readers],
    };
    for (partition, answer) in (0..=u8::MAX).map(Partition).zip(answers) {
        let of_partition = Op::Traded {
            fence: *fence,
            partition,
            limit: 0,
        };
        let name = |kind| name_of(&of_partition, names, kind, "");
        let mut row = script_row(&of_partition, names, std::mem::take(answer))?.into_iter();
        swept.now = swept.now.min(StoreMs(number(row.next())?));
        let (ids, feeds) = (rows(row.next())?, row);
        if feeds.len() != readers {
            return Err(unreadable("one page for each reader"));
        }
        swept.traded.extend(traded(&name("X"), ids.into_iter())?);
        for (page, pages) in feeds.zip(&mut swept.pages) {
            let page = feed(&name("F"), rows(Some(page))?.into_iter())?;
            if !page.is_idle() {
                pages.push((partition, page));
            }
        }
    }
    Ok(Reply::Swept(swept))
}

fn rows(value: Option<Value>) -> Result<Vec<Value>, StoreError> {
    match value {
        Some(Value::Array(rows)) => Ok(rows),
        _ => Err(unreadable("a list")),
    }
}

fn traded(set: &str, row: impl Iterator<Item = Value>) -> Result<Vec<MeterId>, StoreError> {
    let ids = row.map(|member| string(&member).and_then(|m| meter_id(&m)));
    let ids: Option<Vec<MeterId>> = ids.collect();
    ids.ok_or_else(|| garbage(set))
}

fn feed(set: &str, mut row: impl Iterator<Item = Value>) -> Result<FeedPage, StoreError> {
    let now = StoreMs(number(row.next())?);
    let seq = number(row.next())?;
    let more = flag(row.next())?;
    let (mut entries, mut tallies) = (Vec::new(), Vec::new());
    while let Some(key) = row.next() {
        let fields = [Some(key), row.next(), row.next(), row.next()];
        match changed(fields).ok_or_else(|| garbage(set))? {
            Changed::Usage(entry) => entries.push(entry),
            Changed::Tally(entry) => tallies.push(entry),
        }
    }
    Ok(FeedPage {
        now,
        entries,
        tallies,
        seq,
        more,
    })
}

/// What a feed is of.
enum Changed {
    Usage(FeedEntry),
    Tally(TallyEntry),
}

fn changed(fields: [Option<Value>; 4]) -> Option<Changed> {
    let [key, period, actor, counts] = fields;
    let [key, period, actor] = [key, period, actor].map(|field| field.as_ref().and_then(string));
    let (key, period, counts) = (key?, period?, bytes(counts?)?);
    let actor = text::parse_slot_actor(&actor?)?;
    Some(match period.as_str() {
        "~" => Changed::Tally(TallyEntry {
            id: meter_id(&key)?,
            actor,
            tally: pack::parse_tally(&counts)?,
        }),
        period => Changed::Usage(FeedEntry {
            key: Key::parse(&key)?,
            period: StoreMs(period.parse().ok()?),
            actor,
            counts: pack::parse_counts(&counts)?,
        }),
    })
}

/// A period's slots in the order of their actors, the own first.
fn slots_of(
    place: &str,
    slots: Value,
) -> Result<Vec<(Option<apportion_core::Actor>, apportion_core::usage::Counts)>, StoreError> {
    let slots = pairs(slots).and_then(|pairs| {
        pairs
            .into_iter()
            .map(|(actor, counts)| {
                let counts = pack::parse_counts(&bytes(counts)?)?;
                Some((text::parse_slot_actor(&actor)?, counts))
            })
            .collect::<Option<Vec<_>>>()
    });
    let mut slots = slots.ok_or_else(|| garbage(place))?;
    slots.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    Ok(slots)
}

/// The value in the answer to CONFIG GET; `None` where it isn't permitted.
pub(super) fn config_value(answer: Value) -> Option<String> {
    let (_, value) = pairs(accepted(answer).ok()?)?.pop()?;
    string(&value)
}

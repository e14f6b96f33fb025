//! Gathers what callers ask at the same time into one call.
//!
//! A caller that finds a free place makes its call at once, alone: nobody waits for company. Only when so many calls are
//! on their way that another would wait behind them anyway, what arrives is kept, and goes with the next call that is
//! made. So a store that is idle adds nothing, and a busy one answers many in one call.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// How calls are gathered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Calls on their way at a time.
    pub(crate) calls_max: usize,
    /// Questions in one call.
    pub(crate) call_len_max: usize,
    /// Questions that wait for a call.
    pub(crate) waiting_max: usize,
    /// How long a question may wait, its call included.
    pub(crate) timeout: Duration,
}

/// Why there is no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unanswered {
    /// It waited in vain to be sent.
    NotSent,
    /// It was sent, and no answer came in time.
    Unknown,
}

/// Gathers questions `T` into calls that answer each with an `R`.
pub(crate) struct Batcher<T, R>(Arc<Inner<T, R>>);

/// The answers of a call, once they have come.
pub(crate) type Reply<R> = Pin<Box<dyn Future<Output = Vec<R>> + Send>>;
type MakeCall<T, R> = dyn Fn(Vec<T>) -> Reply<R> + Send + Sync;

struct Inner<T, R> {
    shape: Shape,
    send: Box<MakeCall<T, R>>,
    state: Mutex<State<T, R>>,
}

struct State<T, R> {
    calls: usize,
    waiting: VecDeque<Waiting<T, R>>,
}

struct Waiting<T, R> {
    question: T,
    place: Arc<AtomicU8>,
    answer: oneshot::Sender<R>,
}

/// Where a question is: whoever moves it from waiting decides its fate.
const WAITING: u8 = 0;
const SENT: u8 = 1;
const GIVEN_UP: u8 = 2;

// === impl Batcher ===

impl<T, R> Batcher<T, R>
where
    T: Send + 'static,
    R: Send + 'static,
{
    /// `send` makes one call; it answers in the order of the questions, and always comes to an end.
    pub(crate) fn new(
        shape: Shape,
        send: impl Fn(Vec<T>) -> Reply<R> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(Inner {
            shape,
            send: Box::new(send),
            state: Mutex::new(State {
                calls: 0,
                waiting: VecDeque::new(),
            }),
        }))
    }

    pub(crate) async fn ask(&self, question: T) -> Result<R, Unanswered> {
        let (place, answer) = match self.0.enter(question)? {
            Entered::Alone(question, call) => {
                let mut answers = (self.0.send)(vec![question]).await;
                drop(call);
                return answers.pop().ok_or(Unanswered::Unknown);
            }
            Entered::Waits(place, answer) => (place, answer),
        };
        match tokio::time::timeout(self.0.shape.timeout, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(Unanswered::Unknown),
            Err(_) => Err(give_up(&place)),
        }
    }
}

fn give_up(place: &AtomicU8) -> Unanswered {
    let moved = place.compare_exchange(WAITING, GIVEN_UP, Ordering::AcqRel, Ordering::Acquire);
    match moved {
        Ok(_) => Unanswered::NotSent,
        Err(_) => Unanswered::Unknown,
    }
}

enum Entered<T, R>
where
    T: Send + 'static,
    R: Send + 'static,
{
    Alone(T, Call<T, R>),
    Waits(Arc<AtomicU8>, oneshot::Receiver<R>),
}

// === impl Inner ===

impl<T, R> Inner<T, R>
where
    T: Send + 'static,
    R: Send + 'static,
{
    fn lock(&self) -> MutexGuard<'_, State<T, R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(self: &Arc<Self>, question: T) -> Result<Entered<T, R>, Unanswered> {
        let mut state = self.lock();
        if state.calls < self.shape.calls_max {
            state.calls += 1;
            return Ok(Entered::Alone(question, Call(self.clone())));
        }
        if state.waiting.len() >= self.shape.waiting_max {
            return Err(Unanswered::NotSent);
        }
        let place = Arc::new(AtomicU8::new(WAITING));
        let (answer, receiver) = oneshot::channel();
        state.waiting.push_back(Waiting {
            question,
            place: place.clone(),
            answer,
        });
        Ok(Entered::Waits(place, receiver))
    }

    /// The questions of the next call, without those that were given up.
    fn next(&self) -> (Vec<T>, Vec<oneshot::Sender<R>>) {
        let mut state = self.lock();
        let (mut questions, mut answers) = (Vec::new(), Vec::new());
        while questions.len() < self.shape.call_len_max
            && let Some(waiting) = state.waiting.pop_front()
        {
            let sent =
                waiting
                    .place
                    .compare_exchange(WAITING, SENT, Ordering::AcqRel, Ordering::Acquire);
            if sent.is_ok() {
                questions.push(waiting.question);
                answers.push(waiting.answer);
            }
        }
        (questions, answers)
    }
}

/// A place among the calls. When its call is over, those that wait go with the next one, in a task of its own: whoever
/// called first may be gone by then.
struct Call<T, R>(Arc<Inner<T, R>>)
where
    T: Send + 'static,
    R: Send + 'static;

impl<T, R> Call<T, R>
where
    T: Send + 'static,
    R: Send + 'static,
{
    async fn run(self) {
        loop {
            let (questions, answers) = self.0.next();
            if questions.is_empty() {
                return;
            }
            let replies = (self.0.send)(questions).await;
            for (answer, reply) in answers.into_iter().zip(replies) {
                // Who doesn't wait any more has been told that the outcome is unknown.
                let _ = answer.send(reply);
            }
        }
    }
}

impl<T, R> Drop for Call<T, R>
where
    T: Send + 'static,
    R: Send + 'static,
{
    fn drop(&mut self) {
        let mut state = self.0.lock();
        if !state.waiting.is_empty()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            drop(state);
            let mut place = HandedOn(Some(self.0.clone()));
            runtime.spawn(async move {
                if let Some(inner) = place.0.take() {
                    Call(inner).run().await;
                }
            });
            return;
        }
        state.calls -= 1;
    }
}

/// A place on its way to the task that takes it. A runtime that shuts down takes none: then those that wait are gone too.
struct HandedOn<T, R>(Option<Arc<Inner<T, R>>>)
where
    T: Send + 'static,
    R: Send + 'static;

impl<T, R> Drop for HandedOn<T, R>
where
    T: Send + 'static,
    R: Send + 'static,
{
    fn drop(&mut self) {
        if let Some(inner) = self.0.take() {
            let mut state = inner.lock();
            state.calls -= 1;
            state.waiting.clear();
        }
    }
}

impl<T, R> Clone for Batcher<T, R> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T, R> fmt::Debug for Batcher<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batcher")
            .field("shape", &self.0.shape)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::Notify;

    const SHAPE: Shape = Shape {
        calls_max: 1,
        call_len_max: 3,
        waiting_max: 8,
        timeout: Duration::from_secs(20),
    };

    /// A store that answers each number with its double, in calls that wait for a permit.
    struct Slow {
        batcher: Batcher<u64, u64>,
        go: Arc<Notify>,
        calls: Arc<Mutex<Vec<Vec<u64>>>>,
    }

    impl Slow {
        fn new(shape: Shape) -> Self {
            let (go, calls) = (Arc::new(Notify::new()), Arc::new(Mutex::new(Vec::new())));
            let (gate, seen) = (go.clone(), calls.clone());
            let batcher = Batcher::new(shape, move |numbers: Vec<u64>| {
                seen.lock().unwrap().push(numbers.clone());
                let gate = gate.clone();
                Box::pin(async move {
                    gate.notified().await;
                    numbers.into_iter().map(|n| n * 2).collect()
                })
            });
            Self { batcher, go, calls }
        }

        fn ask(&self, n: u64) -> tokio::task::JoinHandle<Result<u64, Unanswered>> {
            let batcher = self.batcher.clone();
            tokio::spawn(async move { batcher.ask(n).await })
        }

        async fn until_calls(&self, n: usize) {
            until(|| self.calls.lock().unwrap().len() >= n).await;
        }

        async fn until_waiting(&self, n: usize) {
            until(|| self.batcher.0.lock().waiting.len() >= n).await;
        }
    }

    async fn until(mut holds: impl FnMut() -> bool) {
        let wait = async {
            while !holds() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), wait)
            .await
            .unwrap();
    }

    #[tokio::test]
    async fn who_is_alone_is_sent_at_once_and_who_comes_meanwhile_goes_together() {
        let slow = Slow::new(SHAPE);
        let first = slow.ask(1);
        slow.until_calls(1).await;
        let mut others = Vec::new();
        for n in 2..=5 {
            others.push(slow.ask(n));
            slow.until_waiting(others.len()).await;
        }
        for call in 1..=3 {
            slow.until_calls(call).await;
            slow.go.notify_one();
        }
        assert_eq!(first.await.unwrap(), Ok(2));
        for (other, n) in others.into_iter().zip(2..) {
            assert_eq!(other.await.unwrap(), Ok(n * 2));
        }
        let calls = slow.calls.lock().unwrap().clone();
        assert_eq!(calls, [vec![1], vec![2, 3, 4], vec![5]]);
        assert_eq!(slow.batcher.0.lock().calls, 0);
    }

    #[tokio::test]
    async fn a_caller_that_goes_away_takes_nobody_with_it() {
        let slow = Slow::new(SHAPE);
        let first = slow.ask(1);
        slow.until_calls(1).await;
        let second = slow.ask(2);
        slow.until_waiting(1).await;
        first.abort();
        slow.until_calls(2).await;
        slow.go.notify_one();
        assert_eq!(second.await.unwrap(), Ok(4));
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_too_long_is_told_whether_it_was_sent() {
        let slow = Slow::new(SHAPE);
        let first = slow.ask(1);
        slow.until_calls(1).await;
        let second = slow.ask(2);
        assert_eq!(second.await.unwrap(), Err(Unanswered::NotSent));
        let third = slow.ask(3);
        slow.until_waiting(1).await;
        slow.go.notify_one();
        assert_eq!(first.await.unwrap(), Ok(2));
        assert_eq!(third.await.unwrap(), Err(Unanswered::Unknown));
        let calls = slow.calls.lock().unwrap().clone();
        assert_eq!(
            calls,
            [vec![1], vec![3]],
            "what was given up was never sent"
        );
    }

    #[tokio::test]
    async fn so_many_wait_and_no_more() {
        let slow = Slow::new(Shape {
            waiting_max: 1,
            ..SHAPE
        });
        let _first = slow.ask(1);
        slow.until_calls(1).await;
        let _second = slow.ask(2);
        slow.until_waiting(1).await;
        assert_eq!(slow.batcher.ask(3).await, Err(Unanswered::NotSent));
    }
}

//! Checking a model to the end of its space, or to its first counterexample.

use stateright::{Checker, Expectation, HasDiscoveries, Model, Path};
use std::fmt::{self, Debug};
use std::hash::Hash;
use std::time::{Duration, Instant};

/// A model of a protocol, with the spaces that it is checked in and the mistakes that it can make.
pub trait Protocol: Model + Clone + Send + Sync + Sized + 'static
where
    Self::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    Self::Action: Clone + Debug + PartialEq,
{
    const NAME: &'static str;
    /// How much may happen.
    type Bounds: Copy + Debug;
    type Planted: Copy + Debug + 'static;

    fn new(bounds: Self::Bounds, planted: Option<Self::Planted>) -> Self;

    /// Spaces of seconds.
    fn small() -> Vec<Self::Bounds>;

    /// Spaces of minutes.
    fn large() -> Vec<Self::Bounds>;

    fn planted() -> &'static [Self::Planted];

    /// A space in which a mistake shows, and without it nothing does.
    fn shows_in(bug: Self::Planted) -> Self::Bounds;

    /// Sets one of the bounds by its name. `None` where there is none of that name.
    fn set(bounds: Self::Bounds, name: &str, value: u8) -> Option<Self::Bounds>;
}

/// What came of checking a model.
#[derive(Debug)]
pub struct Outcome {
    /// States that differ.
    pub states: usize,
    /// Steps to the farthest of them, by the way that was tried first.
    pub depth: usize,
    pub took: Duration,
    /// The space was exhausted. False where something failed, or a limit was reached.
    pub is_exhausted: bool,
    pub failures: Vec<Failure>,
    /// What was to be seen somewhere, and wasn't.
    pub unseen: Vec<&'static str>,
}

/// A way to a state in which what should always hold doesn't.
#[derive(Debug)]
pub struct Failure {
    pub property: &'static str,
    /// One a step.
    pub actions: Vec<String>,
    /// Where they lead.
    pub state: String,
}

/// How far to go.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    pub threads: usize,
    /// Give up at so many states.
    pub states_max: Option<usize>,
    /// Look no farther than so many steps.
    pub steps_max: Option<usize>,
    /// How often to tell of progress; not at all if zero.
    pub progress: Duration,
}

// === impl Effort ===

impl Effort {
    /// For tests: as many tests run at once as there are processors.
    pub const QUIET: Self = Self {
        threads: 1,
        states_max: None,
        steps_max: None,
        progress: Duration::ZERO,
    };
}

// === impl Outcome ===

impl Outcome {
    /// To the nearest failure.
    pub fn steps(&self) -> Option<usize> {
        self.failures.iter().map(|f| f.actions.len()).min()
    }

    /// All was looked at, nothing failed, and what was to be seen was seen: no promise was kept for want of occasion.
    pub fn holds(&self) -> bool {
        self.is_exhausted && self.failures.is_empty() && self.unseen.is_empty()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let extent = if self.is_exhausted {
            "exhausted"
        } else {
            "not exhausted"
        };
        writeln!(
            f,
            "{extent}: {} states, depth {}, {:.1} s",
            self.states,
            self.depth,
            self.took.as_secs_f64()
        )?;
        for name in &self.unseen {
            writeln!(f, "never seen: {name}")?;
        }
        for failure in &self.failures {
            let steps = failure.actions.len();
            writeln!(f, "broken in {steps} steps: {}", failure.property)?;
            for action in &failure.actions {
                writeln!(f, "  {action}")?;
            }
            writeln!(f, "{}", failure.state)?;
        }
        Ok(())
    }
}

/// The shortest way to a failure: the checker looks at a block of states before it stops, and may name a longer one.
pub fn shortest<M>(model: M) -> Outcome
where
    M: Model + Clone + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    let mut found = check(model.clone(), Effort::QUIET, |_, _| {});
    while let Some(fewer) = found.steps().and_then(|steps| steps.checked_sub(1)) {
        let effort = Effort {
            steps_max: Some(fewer),
            ..Effort::QUIET
        };
        let next = check(model.clone(), effort, |_, _| {});
        if next.failures.is_empty() {
            break;
        }
        found = next;
    }
    found
}

/// Looks at every state that `model` can be in, breadth first, until something fails: so a counterexample is one of the
/// shortest. `tell` hears of progress: states, and depth.
pub fn check<M>(model: M, effort: Effort, mut tell: impl FnMut(usize, usize)) -> Outcome
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    let began = Instant::now();
    let properties = model.properties();
    let mut builder = model
        .checker()
        .threads(effort.threads)
        .finish_when(HasDiscoveries::AnyFailures);
    if let Some(most) = effort.states_max {
        builder = builder.target_state_count(most);
    }
    if let Some(most) = effort.steps_max {
        // The checker counts states, and leaves out those at the limit.
        builder = builder.target_max_depth(most + 2);
    }
    let mut checker = builder.spawn_bfs();
    let handles = checker.handles();
    if !effort.progress.is_zero() {
        let mut told = Instant::now();
        while handles.iter().any(|h| !h.is_finished()) {
            std::thread::sleep(Duration::from_millis(50));
            if told.elapsed() >= effort.progress {
                told = Instant::now();
                tell(checker.unique_state_count(), checker.max_depth());
            }
        }
    }
    for handle in handles {
        handle.join().expect("a property or a step panicked");
    }
    let mut failures = Vec::new();
    let mut unseen = Vec::new();
    for property in &properties {
        let found = checker.discovery(property.name);
        match (&property.expectation, found) {
            (Expectation::Always | Expectation::Eventually, Some(path)) => {
                failures.push(failure(property.name, path));
            }
            (Expectation::Sometimes, None) => unseen.push(property.name),
            _ => {}
        }
    }
    let gave_up = effort
        .states_max
        .is_some_and(|most| checker.state_count() >= most);
    Outcome {
        states: checker.unique_state_count(),
        depth: checker.max_depth(),
        took: began.elapsed(),
        is_exhausted: failures.is_empty() && !gave_up && effort.steps_max.is_none(),
        failures,
        unseen,
    }
}

fn failure<S: Debug, A: Debug>(property: &'static str, path: Path<S, A>) -> Failure {
    let steps = path.into_vec();
    let state = steps.last().map(|(state, _)| format!("{state:#?}"));
    Failure {
        property,
        actions: steps
            .iter()
            .filter_map(|(_, action)| action.as_ref().map(|a| format!("{a:?}")))
            .collect(),
        state: state.unwrap_or_default(),
    }
}

//! The functions of sagas, by type and version.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::dialect::Dialect;
use crate::error::{OpenError, misfit};
use crate::key::{self, NAME_BYTES_MAX};
use crate::record::SagaKind;
use crate::run::Run;
use crate::stop::Stop;

/// The function of a saga: `async fn(&mut Run, I) -> Result<O, Stop>`, or an async closure that
/// clones the values that it captures. Implemented for all functions of this form.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a function of a saga",
    note = "write `async fn(saga: &mut Run<DB>, input: I) -> Result<O, Stop>`, or a closure of this form; its future \
            is `Send`, and the closure is `Clone`"
)]
pub trait SagaFunction<'r, DB: Dialect, I, O> {
    /// Its future.
    type Future: Future<Output = Result<O, Stop>> + Send + 'r;

    /// Begins a run.
    fn call(self, run: &'r mut Run<DB>, input: I) -> Self::Future;
}

impl<'r, DB, I, O, F, Fut> SagaFunction<'r, DB, I, O> for F
where
    DB: Dialect,
    F: FnOnce(&'r mut Run<DB>, I) -> Fut,
    Fut: Future<Output = Result<O, Stop>> + Send + 'r,
{
    type Future = Fut;

    fn call(self, run: &'r mut Run<DB>, input: I) -> Fut {
        self(run, input)
    }
}

/// The end of a run.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The output, as JSON.
    Output(String),
    Stop(Stop),
    /// Input or output do not fit; the saga needs an operator.
    Unfit(String),
}

pub(crate) type Running<'r> = Pin<Box<dyn Future<Output = Ended> + Send + 'r>>;

/// A saga's function, without its types for input and output.
pub(crate) trait AnySaga<DB: Dialect>: Send + Sync {
    /// Checks that the function can read the input.
    fn check(&self, input: &str) -> Result<(), String>;
    fn run<'r>(&'r self, run: &'r mut Run<DB>, input: &'r str) -> Running<'r>;
}

struct Typed<F, I, O>(F, PhantomData<fn(I) -> O>);

impl<DB, F, I, O> AnySaga<DB> for Typed<F, I, O>
where
    DB: Dialect,
    F: for<'r> SagaFunction<'r, DB, I, O> + Clone + Send + Sync,
    I: DeserializeOwned + Send,
    O: Serialize,
{
    fn check(&self, input: &str) -> Result<(), String> {
        serde_json::from_str::<I>(input).map(drop).map_err(|error| misfit::<I>(&error))
    }

    fn run<'r>(&'r self, run: &'r mut Run<DB>, input: &'r str) -> Running<'r> {
        Box::pin(async move {
            let input: I = match serde_json::from_str(input) {
                Ok(input) => input,
                Err(error) => {
                    return Ended::Unfit(format!("its input does not fit: {}", misfit::<I>(&error)));
                }
            };
            match self.0.clone().call(run, input).await {
                Ok(output) => match serde_json::to_string(&output) {
                    Ok(output) => Ended::Output(output),
                    Err(error) => Ended::Unfit(format!("its output cannot be written as JSON: {error}")),
                },
                Err(stop) => Ended::Stop(stop),
            }
        })
    }
}

/// The versions of a type; those without a function run elsewhere.
type Versions<DB> = BTreeMap<u16, Option<Box<dyn AnySaga<DB>>>>;

/// The versions of each type.
pub(crate) struct Registry<DB: Dialect> {
    types: HashMap<String, Versions<DB>>,
}

impl<DB: Dialect> Registry<DB> {
    pub(crate) fn new() -> Self {
        Self { types: HashMap::new() }
    }

    pub(crate) fn add<F, I, O>(
        &mut self,
        saga_type: String,
        version: u16,
        function: F,
    ) -> Result<(), OpenError>
    where
        F: for<'r> SagaFunction<'r, DB, I, O> + Clone + Send + Sync + 'static,
        I: DeserializeOwned + Send + 'static,
        O: Serialize + 'static,
    {
        self.insert(saga_type, version, Some(Box::new(Typed::<F, I, O>(function, PhantomData))))
    }

    pub(crate) fn insert(
        &mut self,
        saga_type: String,
        version: u16,
        function: Option<Box<dyn AnySaga<DB>>>,
    ) -> Result<(), OpenError> {
        key::check("the type of a saga", &saga_type, NAME_BYTES_MAX)?;
        let versions = self.types.entry(saga_type.clone()).or_default();
        match versions.insert(version, function) {
            None => Ok(()),
            Some(_) => Err(OpenError::Twice { saga_type, version }),
        }
    }

    /// Returns the latest version of a type, and its function.
    pub(crate) fn latest(&self, saga_type: &str) -> Option<(u16, Option<&dyn AnySaga<DB>>)> {
        let (version, function) = self.types.get(saga_type)?.last_key_value()?;
        Some((*version, function.as_deref()))
    }

    pub(crate) fn function(&self, saga_type: &str, version: u16) -> Option<&dyn AnySaga<DB>> {
        self.types.get(saga_type)?.get(&version)?.as_deref()
    }

    /// Returns the types and versions that can run here.
    pub(crate) fn runnable(&self) -> Vec<SagaKind> {
        let mut all: Vec<_> = self
            .types
            .iter()
            .flat_map(|(name, versions)| {
                let here = versions.iter().filter(|(_, function)| function.is_some());
                here.map(|(version, _)| SagaKind { saga_type: name.clone(), version: *version })
            })
            .collect();
        all.sort();
        all
    }
}

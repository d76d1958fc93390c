//! Erases the answers of idempotency keys, and sagas.

use idempotency::KeysOfName;

use super::Erasing;
use super::report::ErasedPart;
use crate::error::{OperateError, OperateErrorKind};
use crate::keys::Keys;
use crate::named_tables::NamedTables;
use crate::sagas::SagaDatabase;
use crate::tables::Tables;

impl Erasing<'_> {
    /// Erases the answers and sagas of a database, if it has such tables.
    pub(super) async fn stores(&mut self, named: &NamedTables) {
        let tables = match &named.tables {
            Ok(tables) => tables,
            Err(problem) => {
                self.report.fail(OperateError::new(OperateErrorKind::Refused, problem).about(&named.name));
                return;
            }
        };
        let mut answers = ErasedPart::new(&named.name, "answers");
        let erased = self.answers(tables, &mut answers).await;
        self.report.add(answers);
        self.ended(named, erased);
        if self.subject.tenant.is_some() {
            return;
        }
        let mut sagas = ErasedPart::new(&named.name, "sagas");
        let erased = self.sagas(tables, &mut sagas).await;
        self.report.add(sagas);
        self.ended(named, erased);
    }

    /// Reports an error, except that of a database without such tables.
    fn ended(&mut self, named: &NamedTables, erased: Result<(), OperateError>) {
        match erased {
            Err(error) if error.kind() != OperateErrorKind::NoTables => {
                self.report.fail(error.about(&named.name));
            }
            _ => {}
        }
    }

    async fn answers(&self, tables: &Tables, part: &mut ErasedPart) -> Result<(), OperateError> {
        let keys = Keys::open(tables).await?;
        let erased = self.erase_answers(&keys, part).await;
        keys.close().await;
        erased
    }

    async fn erase_answers(&self, keys: &Keys, part: &mut ErasedPart) -> Result<(), OperateError> {
        let of = KeysOfName { name: self.subject.key.clone(), tenant: self.subject.tenant.clone() };
        let mut after = None;
        loop {
            let slice = keys.named(&of, after.as_ref()).await?;
            (self.progress)(slice.ended.len() as u64 + slice.running);
            part.leave("in progress", slice.running);
            for id in &slice.ended {
                if self.stop.is_cancelled() {
                    return Ok(());
                }
                let is_erased = match self.signed {
                    Some(signed) => keys.erase(id, signed.operator.name()).await?,
                    None => true,
                };
                part.erased += u64::from(is_erased);
            }
            match slice.next {
                Some(next) => after = Some(next),
                None => return Ok(()),
            }
        }
    }

    async fn sagas(&self, tables: &Tables, part: &mut ErasedPart) -> Result<(), OperateError> {
        let sagas = SagaDatabase::open(tables).await?;
        let erased = self.erase_sagas(&sagas, part).await;
        sagas.close().await;
        erased
    }

    async fn erase_sagas(&self, sagas: &SagaDatabase, part: &mut ErasedPart) -> Result<(), OperateError> {
        let found = sagas.of_id(&self.subject.key).await?;
        (self.progress)(found.len() as u64);
        for saga in found {
            if self.stop.is_cancelled() {
                return Ok(());
            }
            if !saga.has_ended {
                part.leave("running", 1);
                continue;
            }
            let is_erased = self.is_look() || sagas.erase(&saga.id).await?;
            part.erased += u64::from(is_erased);
        }
        Ok(())
    }
}

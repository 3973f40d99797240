//! The function of each command that does not change its session.

use crate::resp::command_spec::Command;
use crate::resp::error_texts as texts;
use crate::resp::reply;

use super::call::Call;

impl Call<'_, '_> {
    /// Executes the command and appends its reply.
    pub(super) fn dispatch(mut self) {
        match self.spec.command {
            Command::Set => self.answer(Call::set),
            Command::Setnx => self.answer(Call::setnx),
            Command::Setex | Command::Psetex => self.answer(Call::setex),
            Command::Getset => self.answer(Call::getset),
            Command::Mset => self.answer(Call::mset),
            Command::Msetex => self.answer(Call::msetex),
            Command::Msetnx => self.answer(Call::msetnx),
            Command::Append => self.answer(Call::append),
            Command::Setrange => self.answer(Call::setrange),
            Command::Getdel => self.answer(Call::getdel),
            Command::Getex => self.answer(Call::getex),
            Command::Delifeq => self.answer(Call::delifeq),
            Command::Incr | Command::Decr | Command::Incrby | Command::Decrby => {
                self.answer(Call::increment);
            }
            Command::Incrbyfloat => self.answer(Call::increment_float),
            Command::Expire | Command::Pexpire | Command::Expireat | Command::Pexpireat => {
                self.expire();
            }
            Command::Persist => self.answer(Call::persist),
            Command::Del | Command::Unlink => self.del(),
            Command::Rename | Command::Renamenx => self.answer(Call::rename),
            Command::Copy => self.answer(Call::copy),
            // One that takes steps belongs to the session.
            Command::Flushall | Command::Flushdb => self.answer(Call::flush_all),
            Command::Move => self.answer(Call::move_key),
            Command::Dbsize => self.dbsize(),
            Command::Scan => self.answer(Call::scan),
            Command::Object => self.object(),
            Command::Memory => self.memory(),
            Command::Hset | Command::Hmset => self.answer(Call::hset),
            Command::Hsetnx => self.answer(Call::hsetnx),
            Command::Hdel => self.answer(Call::hdel),
            Command::Hgetdel => self.answer(Call::hgetdel),
            Command::Hincrby => self.answer(Call::hincrby),
            Command::Hincrbyfloat => self.answer(Call::hincrbyfloat),
            Command::Hrandfield => self.answer(Call::hrandfield),
            Command::Hscan => self.answer(Call::hscan),
            Command::Eval | Command::Evalsha => self.answer(Call::eval),
            Command::Script => self.script(),
            Command::Function => self.function(),
            Command::Info => self.info(),
            Command::Config => self.config(),
            Command::Command => self.command(),
            Command::Time => self.time(),
            Command::Role => self.role(),
            Command::Slowlog => self.slowlog(),
            Command::Latency => self.latency(),
            Command::Readonly | Command::Readwrite => self.ok(),
            Command::Cluster | Command::Asking => self.error(texts::CLUSTER_DISABLED),
            Command::Ping => self.error(texts::wrong_count(self.spec.name)),
            // A lookup whose arguments are right is a part of a batch.
            Command::Getrange | Command::Substr => self.error(texts::NOT_INTEGER),
            Command::Get
            | Command::Mget
            | Command::Exists
            | Command::Touch
            | Command::Ttl
            | Command::Pttl
            | Command::Expiretime
            | Command::Pexpiretime
            | Command::Type
            | Command::Strlen
            | Command::Hget
            | Command::Hmget
            | Command::Hgetall
            | Command::Hkeys
            | Command::Hvals
            | Command::Hlen
            | Command::Hexists
            | Command::Hstrlen
            | Command::Echo => self.error(texts::SYNTAX),
            // These belong to the session.
            Command::Acl
            | Command::Auth
            | Command::Client
            | Command::Discard
            | Command::Exec
            | Command::Hello
            | Command::Keys
            | Command::Multi
            | Command::Quit
            | Command::Randomkey
            | Command::Reset
            | Command::Select
            | Command::Unwatch
            | Command::Watch => self.error(texts::SYNTAX),
        }
    }

    /// `FUNCTION FLUSH`: there are no functions.
    fn function(&mut self) {
        match self.subcommand() {
            Some("flush") => self.context.push(reply::OK),
            Some(_) => self.help(),
            None => {}
        }
    }
}

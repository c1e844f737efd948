-- The time by which everything is due on a shard, for whoever has to tell when something was; and
-- whether the shard can keep a filter of RedisBloom.
--
-- Input    probe (1: try that)
-- Reply    us since 1970; with `probe` a list of that and 1 or 0
-- Cost     O(1)
-- Retry    harmless
-- Include  shared/keys shared/texts shared/clock

if not input.probe then return integer(NOW) end

-- A key that is there for no longer than this step. Modules with these commands have other names
-- from server to server, and an ACL may forbid some of them.
local PROBE = KEYS[2]

local function problem_of(...)
  local reply = redis.pcall(...)
  return type(reply) == 'table' and reply.err
end

redis.call('UNLINK', PROBE) -- a first write that removes: works at maxmemory too
local problem = problem_of('BF.RESERVE', PROBE, '0.01', '100', 'EXPANSION', '1')
  or problem_of('BF.MADD', PROBE, 'probe') or problem_of('BF.MEXISTS', PROBE, 'probe')
redis.call('UNLINK', PROBE)
if not problem then return {integer(NOW), 1} end
local text = string.lower(problem)
for _, sign in ipairs({'unknown', 'noperm', "can't run", 'permission', 'acl'}) do
  if string.find(text, sign, 1, true) then return {integer(NOW), 0} end
end
return redis.error_reply(problem) -- READONLY, say, which tells nothing of the module
